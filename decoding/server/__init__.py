"""`decoding serve`: HTTP in front of decoding.Engine. Needs the extra `serve`."""
