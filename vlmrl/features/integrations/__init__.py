"""Doors to other trainers: our verifiers as their reward functions, and TRL's functions as ours."""
