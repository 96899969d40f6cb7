"""What all rooms of the library use: warnings, environment variables."""
