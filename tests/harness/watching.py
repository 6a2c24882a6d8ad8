"""Programs of ``tests/harness/programs`` on one mock mesh in a process of its own, and what is found in each, as JSON.

python -m tests.harness.watching MESH FOLDER MODULE ...   writes FOLDER/MODULE.json: findings by "program wrong|right"
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import traceback
from dataclasses import asdict
from pathlib import Path


def main(mesh_name: str, folder: str, *modules: str) -> None:
    from tests.tt_impl.env import Env
    from tt_impl.harness.checks.find import find
    from tt_impl.harness.watch.session import watched
    from tt_impl.mock import prepare
    from tt_impl.run.cluster import derive_fabric, opened
    from tt_impl.run.mesh import Mesh

    spec = prepare(mesh_name)
    fabric = derive_fabric(spec)
    with opened(spec, fabric) as device:
        mesh = Mesh(device, spec, "mock", fabric)
        for module in modules:
            programs = importlib.import_module(f"tests.harness.programs.{module}")
            findings = {}
            for name in programs.EXPECTED:
                for wrong in (True, False):
                    with watched() as session:
                        try:
                            getattr(programs, name)(Env(mesh, session.shadow), wrong)
                            error = None
                        except Exception:
                            error = traceback.format_exc(limit=-6)
                    ran = {"error": error, "findings": [asdict(finding) for finding in find(session.log)]}
                    findings[f"{name} {'wrong' if wrong else 'right'}"] = ran
                    gc.collect()
            Path(folder, f"{module}.json").write_text(json.dumps(findings, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
