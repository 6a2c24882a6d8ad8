"""Writers: results.json (the records), junit.xml (for CI systems) and parity.md; every number comes from a record.

Records of a ttnn backend have a table of operations each, which goes to a file of its own, operations.json, by case.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from parity.cases.kinds import KINDS
from parity.explain import explanation
from parity.measure.records import Record, SuiteRun
from refsim.files import output
from refsim.files.keys import as_json
from refsim.files.tables import as_markdown

OPERATIONS = "operations.json"

_MARKDOWN = """\
# Parity, suite {{ run.suite }}

{{ run.counts.passed }} passed, {{ run.counts.failed }} failed, {{ run.counts.skipped }} skipped
of {{ run.records | length }} cases{% if run.expr %} that match `-k '{{ run.expr }}'`{% endif %}\
{{ ", part " ~ run.part ~ "," if run.part }} in \
{{ "%.0f" | format(run.wall_s) }} s.

Measured on backend `{{ run.backend }}`, seed {{ run.seed }}, started {{ run.started }}, on {{ run.machine.cpus }} \
{{ run.machine.arch }} cores ({{ run.machine.system }}) with \
{% for name, version in run.versions.items() %}{{ name }} {{ version }}{{ ", " if not loop.last }}{% endfor %}.

Attention is judged against float64 `torch.nn.functional.scaled_dot_product_attention`, models against
diffusers and transformers in fp32 with the same folder and inputs (for bf16: rounded to bf16), `tt_impl` on a ttnn
backend against refsim in bf16. *Shard* is the worst 1 - PCC over every shard of every sample (and head), *seam* that
of the rows next to a shard border, *added* that of what a single block adds to its input, *noise* the relative RMSE of
the oracle itself when it computes in the storage dtype (for fp32 models: its distance from float64). Seconds are those
from the end of the case before; on a ttnn backend cases are started ahead of their turn.

{{ cases }}

{% if not_passed -%}
## Not passed

{% for r in not_passed -%}
- `{{ r.id }}` {{ r.verdict }}: {{ r.reason }}
{% if r.extra.explanation %}
  ```text
  {{ r | why | indent(2) }}
  ```
{% endif -%}
{% endfor %}
{% endif -%}
{% if on_devices -%}
## On the device

What ttnn built for each case: device operations, by math fidelity; the most that the L1 of one core and the DRAM of
one device hold at a time, and in which operation. Every operation is in `operations.json`.

{{ on_devices }}

{% endif -%}
## Thresholds

{{ thresholds }}
"""

_CASES = "case", "verdict", "rel RMSE", "1 - PCC", "shard", "seam", "added", "noise", "MB sent", "s"
_METRICS = "rel_rmse", "one_minus_pcc", "one_minus_pcc_shard", "one_minus_pcc_seam", "added_one_minus_pcc"
_ON_DEVICES = "case", "operations", "different", "fidelity", "peak L1, B", "in", "peak DRAM, MiB", "of", "in"
_THRESHOLDS = "kind", "dtype", "metric", "at most", "because"


def write_all(run: SuiteRun, folder: Path) -> None:
    """Write the files of :func:`files` into an existing folder."""
    output.write(folder / "results.json", results_json(run).encode())
    output.write(folder / "junit.xml", junit_xml(run))
    output.write(folder / "parity.md", markdown(run).encode())
    (folder / OPERATIONS).unlink(missing_ok=True)  # of another run
    if tables := _operations(run):
        output.write(folder / OPERATIONS, (json.dumps(tables, separators=(",", ":")) + "\n").encode())


def files(run: SuiteRun) -> tuple[str, ...]:
    """Return names of what :func:`write_all` writes."""
    return ("results.json", "junit.xml", "parity.md", *([OPERATIONS] if _operations(run) else []))


def _operations(run: SuiteRun) -> dict[str, list[dict[str, Any]]]:
    return {r.id: r.extra["optable"] for r in run.records if r.extra.get("optable")}


def results_json(run: SuiteRun) -> str:
    """Write strict JSON of a run, see :meth:`parity.measure.records.SuiteRun.to_json`."""
    return output.document(run) + "\n"


def junit_xml(run: SuiteRun) -> bytes:
    """Write one test case per record: ``failure`` for a bound exceeded, ``error`` for an exception, ``skipped``."""
    failed = [r for r in run.records if r.verdict == "failed"]
    errors = sum(bool(r.error) for r in failed)
    totals = {
        "name": f"parity.{run.suite}",
        "tests": str(len(run.records)),
        "failures": str(len(failed) - errors),
        "errors": str(errors),
        "skipped": str(run.counts["skipped"]),
        "time": f"{run.wall_s:.3f}",
    }
    root = ET.Element("testsuites", totals)
    suite = ET.SubElement(root, "testsuite", {**totals, "timestamp": run.started[:19]})
    properties = ET.SubElement(suite, "properties")
    for name, value in {"backend": run.backend, "seed": run.seed, **run.versions}.items():
        ET.SubElement(properties, "property", {"name": name, "value": str(value)})
    for r in run.records:
        attributes = {"classname": f"parity.{run.suite}", "name": r.id, "time": f"{r.wall_s:.3f}"}
        element = ET.SubElement(suite, "testcase", attributes)
        message = {"message": _xml_text(r.reason)}
        if r.verdict == "skipped":
            ET.SubElement(element, "skipped", message)
        elif r.verdict == "failed":
            child = ET.SubElement(element, "error" if r.error else "failure", message)
            child.text = _xml_text("\n".join(filter(None, [r.error or r.reason, explained(r)])))
        ET.SubElement(element, "system-out").text = _xml_text(json.dumps(as_json({"metrics": r.metrics})))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def markdown(run: SuiteRun) -> str:
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.ChainableUndefined, autoescape=False, keep_trailing_newline=True)
    environment.filters["why"] = explained
    on_devices = [_on_device(r.id, r.extra["resources"]) for r in run.records if r.extra.get("resources")]
    judged = sorted(run.records, key=lambda r: (list(KINDS).index(r.kind), r.dtype != "fp32"))
    thresholds = dict.fromkeys(
        (r.kind, r.dtype, metric, f"{limit:g}", r.reasons[metric])
        for r in judged
        for metric, limit in r.thresholds.items()
    )
    return environment.from_string(_MARKDOWN).render(
        run=run,
        not_passed=[r for r in run.records if r.verdict != "passed"],
        cases=as_markdown(map(_case, run.records), _CASES),
        on_devices=on_devices and as_markdown(on_devices, _ON_DEVICES),
        thresholds=as_markdown(thresholds, _THRESHOLDS),
    )


def _case(r: Record) -> tuple[str, ...]:
    metrics = *(r.metrics.get(name) for name in _METRICS), r.noise.get("rel_rmse")
    return r.id, r.verdict, *map(number, metrics), f"{sum(r.bytes_by_collective.values()) / 1e6:.1f}", f"{r.wall_s:.1f}"


def _on_device(case: str, d: dict[str, Any]) -> tuple[Any, ...]:
    fidelities = ", ".join(f"{name} {n}" for name, n in d["fidelities"].items())
    l1 = d["peak_l1"]
    dram = d["peak_dram"]
    sizes = (f"{dram['bytes'] / 1048576:.1f}", f"{dram['total'] / 1048576:.0f}")
    return case, d["operations"], d["different"], fidelities, l1["bytes"], l1["op"], *sizes, dram["op"]


def explained(record: Record) -> str:
    """Write the explanation of a failed case in lines, empty where there is none."""
    why = record.extra.get("explanation")
    return explanation.text(why) if why else ""


def number(value: Any) -> str:
    """Write a metric in a table cell: two digits, ``-`` where there is none."""
    return f"{value:.1e}" if isinstance(value, (int, float)) else "-"


def _xml_text(text: str) -> str:
    """Replace the control characters that XML cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
