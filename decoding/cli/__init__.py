"""The program `decoding`: one file for each of its commands."""
