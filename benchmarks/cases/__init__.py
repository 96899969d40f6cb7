"""What is measured: kernels, operators, models, texts."""
