"""The version of this library: that of pyproject.toml."""

VERSION = "0.1.0"
