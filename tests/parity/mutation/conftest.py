"""One copy of the packages for all tests, and children forked from a process that has imported the libraries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from parity.mutation import campaign, child, tree

LIBRARIES = ["torch.distributed", "coverage", "pandas", "pydantic", "rich", "safetensors.torch", "typer"]


@pytest.fixture(scope="package")
def copy() -> Iterator[tree.Tree]:
    """Copy the packages; the user's own stay as they are, and the copy goes."""
    before = {path: path.stat().st_mtime_ns for path in tree.ROOT.glob("refsim/parallel/*.py")}
    with tree.copied([]) as made:
        yield made
    assert not made.root.exists()
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.fixture(scope="package", autouse=True)
def preloaded() -> None:
    child.preload(LIBRARIES)


@pytest.fixture(scope="package")
def all_forked(copy: tree.Tree) -> Iterator[None]:
    """Fork the child that records, too, for which a campaign starts a new Python; a campaign takes the one copy."""
    call = child.call
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "call", lambda *words, fresh=False, **more: call(*words, **more))
        patch.setattr(campaign, "copied", lambda files: contextlib.nullcontext(copy))
        yield
