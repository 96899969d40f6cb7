"""Trains a small translation model with decoding.nn and torch."""
