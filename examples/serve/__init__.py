"""Deployments of `decoding serve`."""
