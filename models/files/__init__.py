"""Opens the files of a model, which may be a stranger's: inside the model's directory, regular,
of a bounded size, and with contents of bounded depth."""

from decoding.models.files.content import (
    CONFIGURATION,
    LINES,
    VOCABULARY,
    YAML_OPTIONS,
    Bounds,
    decoded,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_object,
    read_text,
    size_of,
)
from decoding.models.files.directory import Directory
from decoding.models.files.errors import ModelFileError, clipped, naming, naming_option, short

__all__ = [
    "CONFIGURATION",
    "LINES",
    "VOCABULARY",
    "YAML_OPTIONS",
    "Bounds",
    "Directory",
    "ModelFileError",
    "clipped",
    "decoded",
    "naming",
    "naming_option",
    "open_file",
    "parse_json",
    "read_bytes",
    "read_json",
    "read_object",
    "read_text",
    "short",
    "size_of",
]
