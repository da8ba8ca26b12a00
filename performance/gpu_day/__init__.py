"""The checks of `performance/gpu.py`, one file an idea."""
