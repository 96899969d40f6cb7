"""One file a family: Hugging Face's configuration and names to a ModelSpec and canonical names.

An importer has DEFAULTS, the options of the family's configuration that config.json leaves out, and
convert(config, checkpoint) -> (spec, state).
"""
