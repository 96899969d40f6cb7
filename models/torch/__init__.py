"""The models in plain torch: what is trained, and the oracle of the engine."""
