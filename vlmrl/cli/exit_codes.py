"""Exit codes of the command line; 0 is success."""

FAILED = 1
"""A check says no, or vlmrl itself failed."""
MISTAKE = 2
"""A mistake of the user's: arguments, config or data."""
INTERRUPTED = 130
"""Ctrl-C; a run has been saved."""
