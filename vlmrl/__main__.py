"""`python -m vlmrl` is `vlmrl`."""

from vlmrl.cli import main

main()
