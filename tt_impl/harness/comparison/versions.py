"""Reports of two versions of a program to compare: files that were written, or scripts that are run now."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from refsim.base import processes, scratch
from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError
from tt_impl.harness.reports import index


def report_of(path: Path, mesh: str, fallback: bool) -> dict[str, Any]:
    """Return the report at ``path`` (``.json``), or that of the script at ``path``, run on a mock mesh.

    Raises:
        UserError: it is neither, or the script does not run to its end.
    """
    refuse_unreadable(path, "script or report")
    if path.suffix == ".json":
        return index.load(path)
    if not path.is_file():
        raise UserError(f"there is no script '{path}'; give a Python file, or the JSON of a report.")
    with scratch.Folder("diff") as folder:
        # In a process of its own: ttnn opens one cluster per process.
        words = ["ttnn", "run", "--mesh", mesh, "--report", folder, "--json", *(["--fallback"] if fallback else [])]
        command, environment = processes.command("refsim.cli", *words, str(path), as_list=True)
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
            raise UserError(f"'{path}' does not run to its end on {mesh}: {_reason(ran.stdout)}.")
        (written,) = (path for path in Path(folder).glob("*.json") if not path.name.endswith(".trace.json"))
        return index.load(written)


def _reason(answer: str) -> str:
    """Return the first sentence of a verdict; what ended the command itself stands on stderr already."""
    try:
        return json.loads(answer)["message"].partition("\n")[0].rstrip(".")
    except (ValueError, KeyError):
        return "see above"
