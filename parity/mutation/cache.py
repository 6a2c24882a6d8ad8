"""What no change of ``tt_impl`` alters, made once for all mutations: checkpoints, inputs and refsim's answers.

Without it most of a mutation's time goes into things that are the same for every one of them. What is kept was made by
the program as it is: nothing that a mutation computes is ever kept.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from parity.cases import Case
from parity.cases.store import CheckpointStore
from parity.run.ttnn import TTNNRunner
from refsim.files import output

MOCK = "mock"
"""Folder of ttnn's runtime root and its kernels, under that of what is kept."""
_QUIET = {"LOGURU_LEVEL": "WARNING", "OMP_WAIT_POLICY": "passive"}
"""What ttnn and torch read when they are imported, see ``tt_impl.run.backends`` and ``tt_impl.run.launch``."""


def prepare(root: Path) -> list[str]:
    """Make what all processes share in ``root``, and return which modules they need besides those of the reference."""
    from tt_impl.mock.machine import environment

    environment.make_runtime_root(root / MOCK)
    os.environ |= {name: os.environ.get(name, value) for name, value in _QUIET.items()}
    return ["ttnn"]


class CachedStore(CheckpointStore):
    """Checkpoint folders that stay for the processes that come after this one."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def __enter__(self) -> CachedStore:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def folder(self, model: str, seed: int, *, in_bf16: bool = False) -> Path:
        path = self._root / f"{model}-{seed}{'-bf16' if in_bf16 else ''}"
        if not path.exists():
            with CheckpointStore() as making:
                made = making.folder(model, seed, in_bf16=in_bf16)
                path.parent.mkdir(parents=True, exist_ok=True)
                made.replace(path)  # whole, or not at all: this process may be killed at any time
        return path

    def drop(self, model: str, seed: int) -> None:
        pass


class CachedRunner(TTNNRunner):
    """Runs cases of a ttnn backend with what is kept in ``root``, and notes no operation's resources."""

    optable = False

    def __init__(self, backend: str, root: Path) -> None:
        super().__init__(backend, CachedStore(root / "checkpoints"))
        self._root = root

    def __enter__(self) -> CachedRunner:
        from tt_impl.mock.machine import environment

        super().__enter__()
        environment.share_runtime_root(self._root / MOCK)
        self.warm_up()  # forked while this process has one thread
        return self

    def reference(self, case: Case, seed: int) -> Any:
        if (case.id, seed) not in self._answers:
            path = self._root / f"{case.id}-{seed}.pickle"
            if path.exists():
                self._answers[case.id, seed] = pickle.loads(path.read_bytes())  # noqa: S301 - written below
            else:
                output.write(path, pickle.dumps(super().reference(case, seed)))
        return self._answers[case.id, seed]

    def _inputs_of(self, case: Case, seed: int) -> Path:
        path = self._root / f"{case.id}-{seed}.safetensors"
        if not path.exists():
            super()._inputs_of(case, seed).replace(path)
        return path
