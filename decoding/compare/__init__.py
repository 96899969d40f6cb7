"""Compares engines on the same model: their answers, their times, and the roofline bound.

Needs the extra `compare`; nothing else of the library imports it but its command.
"""
