"""The bundled German-English model, and the script that trained it (train.py)."""
