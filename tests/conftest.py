"""For every test: Python looks for garbage less often, and not in what importing and collecting has left."""

import gc

import pytest

gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # at its end ttnn counts what is still there
