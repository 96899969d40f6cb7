"""One file a family: Hugging Face's configuration and names to a ModelSpec and canonical names.

An importer has DEFAULTS, what the family's configuration means where config.json is silent, and
convert(config, checkpoint) -> (spec, state).
"""
