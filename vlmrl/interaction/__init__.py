"""Completions of several turns: what a policy calls, what it is shown, and who drives it."""
