"""Programs that use the library as its users do."""
