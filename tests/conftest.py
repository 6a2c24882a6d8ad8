"""For every test: Python looks for garbage less often, and not in what importing and collecting has left; the tree of
commands is built once, not for every command line that is run in this process (a tenth of a second each). What
ranks are forked from is forked from the warm process (:mod:`tests.warm`).
"""

import functools
import gc

import pytest
import typer.main

from tests import warm

gc.disable()
warm.forked_servers()

_built = functools.cache(lambda app, groups, build=typer.main.get_command: build(app))
typer.main.get_command = lambda app: _built(app, len(app.registered_groups))  # groups are mounted late


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # at its end ttnn counts what is still there
