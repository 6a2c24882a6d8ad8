"""A process that opens meshes, for kernels in programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tt_impl.run.launch import Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    with Worker() as warm:
        yield warm
