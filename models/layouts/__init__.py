"""What families share: where weights lie, and how configurations are read."""
