"""The models in plain torch, for training and as the reference of the engine's tests."""
