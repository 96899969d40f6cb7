"""The engine of one model: where it runs, its memory, its sessions."""
