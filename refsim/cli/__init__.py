"""The one command line, ``refsim``: a module a command, and the only place that composes all packages.

A command's parameters are its options, which is why it may have many. Nothing is imported before ``main`` runs.
"""

from __future__ import annotations


def main(argv: list[str] | None = None) -> None:
    """Run the command line; this entry point of the console script never returns."""
    from refsim.base.search_path import leave_current_folder

    leave_current_folder()
    from refsim.cli.signals import signals

    signals.install()
    from refsim.cli.process import main as run

    run(argv)
