"""Weights: read from files, packed for the engine of a device, kept in converted models."""
