"""Importers' shared parts: the layouts of weights, and the reading of configurations."""
