"""Engines side by side on the same model: their answers, their times, and what the machine allows.

Needs the extra `compare`; nothing else of the library imports it but its command.
"""
