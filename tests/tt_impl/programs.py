"""Single runs in a process of their own: ``python -m tests.tt_impl.programs NAME``."""

from __future__ import annotations

import os
import signal
import sys

from refsim.base.errors import UserError


def open_and_close() -> None:
    """Two meshes of one product after each other, one while another is open, then one of another product."""
    from tt_impl.run.mesh import open_mesh

    with open_mesh("t3k") as mesh:
        print(f"opened {mesh.describe()}")
        try:
            with open_mesh("t3k"):
                print("opened twice")
        except UserError as error:
            print(f"refused {error}")
    with open_mesh("t3k-1x8") as mesh:
        print(f"opened {mesh.describe()}")
    try:
        with open_mesh("n150"):
            print("opened a second cluster")
    except UserError as error:
        print(f"refused {error}")


def fail() -> None:
    from tt_impl.run.mesh import open_mesh

    with open_mesh("n150"):
        raise RuntimeError("the program failed")


def die() -> None:
    from tt_impl.run.mesh import open_mesh

    with open_mesh("n150"):
        os.kill(os.getpid(), signal.SIGKILL)


def no_mock() -> None:
    """Everything but the mock is loaded and silicon is asked for, and nothing of the mock is loaded by that."""
    import importlib

    from tests.tree import files, module_name
    from tt_impl.run.mesh import open_mesh

    for name in (module_name(path)[0] for path in files("tt_impl")):
        if not name.startswith(("tt_impl.mock", "tt_impl.harness", "tt_impl.kernels")):
            importlib.import_module(name)
    try:
        with open_mesh("n150", "device"):
            print("opened silicon")
    except UserError as error:
        print(f"refused {error}")
    print("loaded", [name for name in sys.modules if name.startswith("tt_impl.mock")])
    with open_mesh("n150"):
        print("mock", "tt_impl.mock.hardware" in sys.modules)


def without_values() -> None:
    """Calls that end the process on a mock mesh: nobody stands in for them without a shadow; and one without values."""
    import torch

    from tt_impl.mock import ttnn_mock
    from tt_impl.run.mesh import open_mesh

    with open_mesh("n150") as mesh:
        import ttnn

        for action in (
            lambda: ttnn.begin_trace_capture(mesh.device, cq_id=0),
            lambda: mesh.device.load_sub_device_manager(None),
            lambda: ttnn.record_event(mesh.device, 0),
        ):
            try:
                action()
            except UserError as error:
                print(f"refused {error}")
    with ttnn_mock("n150", values=False) as device:
        print(tuple(ttnn.from_torch(torch.empty(1024, 1024, device="meta"), device=device).shape))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
