"""decoding.Engine: requests that join and leave one engine between any two steps."""
