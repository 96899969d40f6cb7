"""Files of corpora: text, JSON lines, TSV, CSV and Parquet, each but the last also compressed.

A file is cut into blocks of rows, which a worker reads and writes with their answers. Nothing here
imports the engine.
"""
