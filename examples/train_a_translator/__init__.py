"""Training a small translation model with decoding.nn."""
