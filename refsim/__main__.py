"""`python -m refsim` is the `refsim` command, which is how torchrun starts it."""

from refsim.cli import main

main()
