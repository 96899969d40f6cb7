"""generate(): its options, its call, and its results."""
