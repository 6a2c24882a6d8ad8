"""``python -m benchmarks.X`` as it was: runs the ``refsim`` command that took its place, with a note."""

from __future__ import annotations

import sys


def run_as(command: str) -> None:
    """Run ``command`` (``refsim bench ...``) with this process's arguments; never returns."""
    from refsim.cli import main

    sys.stderr.write(f"refsim: this is called `{command}` now; the module works for one version more.\n")
    main([*command.split()[1:], *sys.argv[1:]])
