"""`--tensor-parallel N`: the ranks that share out a command's model."""
