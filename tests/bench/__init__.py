"""Benchmarks of a mount beside the same work on its backing directory: `python -m tests.bench`."""
