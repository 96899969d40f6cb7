"""A caller's own functions between the parts of a step, and what they see."""
