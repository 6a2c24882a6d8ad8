"""The one command line, ``refsim``: a module a command, and the only place that composes all packages."""

from refsim.cli.process import main

__all__ = ["main"]
