"""The demo model as a package: decoding.load(decoding_demo.path)."""

from pathlib import Path

path = Path(__file__).parent  # of config.json and the weights
