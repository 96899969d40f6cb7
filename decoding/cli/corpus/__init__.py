"""Commands over files as jobs: `--shard-lines`, `--resume`, `--devices`, `--workers`."""
