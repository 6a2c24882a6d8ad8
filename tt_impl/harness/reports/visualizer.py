"""A program's database as ttnn-visualizer opens it: ``db.sqlite`` and ``config.json`` in a folder.

The tables are those that ttnn itself writes (``ttnn.graph_report``): operations with arguments, lines and tensors, and
the buffers that are allocated after each. Of devices that are allocated in lockstep the first one stands for its mesh.
``operations.duration`` stays empty: nothing was run.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tt_impl.harness.watch.meter import Allocation, Meter, Place, follow
from tt_impl.harness.watch.session import Session
from tt_impl.mock.log.events import Event, TensorUse
from tt_impl.trace.graph import MEMORIES

MOST_BUFFERS = 1_000_000
"""Rows of the table of buffers; a longer program has them after its last operations only."""
_NUMBERS = {name: number for number, name in MEMORIES.items()}
_DEVICE = (
    *("num_y_cores", "num_x_cores", "num_y_compute_cores", "num_x_compute_cores", "worker_l1_size", "l1_num_banks"),
    *("l1_bank_size", "address_at_first_l1_bank", "address_at_first_l1_cb_buffer", "num_banks_per_storage_core"),
    *("num_compute_cores", "num_storage_cores", "total_l1_memory", "total_l1_for_tensors"),
    *("total_l1_for_interleaved_buffers", "total_l1_for_sharded_buffers", "cb_limit"),
)
_TABLES = {
    "devices": ("device_id", *_DEVICE),
    "operations": ("operation_id", "name text", "duration float"),
    "operation_arguments": ("operation_id", "name text", "value text"),
    "stack_traces": ("operation_id", "stack_trace text", "source_file_id"),
    "source_files": ("id", "path text", "contents text"),
    "tensors": (
        *("tensor_id", "shape text", "dtype text", "layout text", "memory_config text"),
        *("device_id", "address", "buffer_type"),
    ),
    "device_tensors": ("tensor_id", "device_id", "address"),
    "input_tensors": ("operation_id", "input_index", "tensor_id"),
    "output_tensors": ("operation_id", "output_index", "tensor_id"),
    "buffers": ("operation_id", "device_id", "address", "max_size_per_bank", "buffer_type", "buffer_layout"),
    "buffer_pages": (
        *("operation_id", "device_id", "address", "core_y", "core_x", "bank_id"),
        *("page_index", "page_address", "page_size", "buffer_type"),
    ),
    "captured_graph": ("operation_id", "captured_graph text"),
    "errors": (
        *("operation_id", "operation_name text", "error_type text", "error_message text"),
        *("stack_trace text", "timestamp text"),
    ),
    "report_metadata": ("key text", "value text"),
    "local_tensor_comparison_records": ("tensor_id", "golden_tensor_id", "matches", "desired_pcc", "actual_pcc float"),
    "global_tensor_comparison_records": ("tensor_id", "golden_tensor_id", "matches", "desired_pcc", "actual_pcc float"),
}
"""Columns by table; integers where no type stands."""


def write(folder: Path, name: str, session: Session) -> None:
    """Write the two files; a folder that was there is replaced."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    on = {"enable_logging": True, "enable_graph_report": False, "enable_comparison_mode": False}
    (folder / "config.json").write_text(json.dumps({"report_name": name} | on), encoding="utf-8")
    with closing(sqlite3.connect(folder / "db.sqlite")) as connection:
        for table, columns in _TABLES.items():
            typed = ", ".join(column if " " in column else f"{column} int" for column in columns)
            connection.execute(f"CREATE TABLE {table} ({typed})")
        _fill(connection, session)
        connection.commit()


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[tuple]) -> None:
    places = ", ".join("?" * len(_TABLES[table]))
    connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)


def _fill(connection: sqlite3.Connection, session: Session) -> None:
    events = session.log.events
    meter = session.meter
    first = {mesh: about["devices"][0] for mesh, about in meter.meshes.items()}
    _insert(connection, "devices", [(first[m], *(a["info"][n] for n in _DEVICE)) for m, a in meter.meshes.items()])
    _insert(connection, "report_metadata", [("source", "refsim, on a mock mesh: memory is real, nothing was run")])
    _insert(connection, "operations", [(e.number, e.op, None) for e in events])
    options = [(e.number, name, json.dumps(value)) for e in events for name, value in e.options.items()]
    _insert(connection, "operation_arguments", options)
    _insert(connection, "stack_traces", [(e.number, _line(e), None) for e in events])
    failed = [(e.number, e.op, e.error, e.error, _line(e), "") for e in events if e.error]
    _insert(connection, "errors", failed)
    uses = {use.tensor: use for e in events for use in (*e.inputs, *e.outputs)}
    _insert(connection, "tensors", [_tensor(use) for use in uses.values()])
    _insert(connection, "device_tensors", [(u.tensor, d, u.address) for u in uses.values() for d in u.devices])
    for table, which in (("input_tensors", "inputs"), ("output_tensors", "outputs")):
        rows = [(e.number, i, use.tensor) for e in events for i, use in enumerate(getattr(e, which))]
        _insert(connection, table, rows)
    _insert(connection, "buffers", deque(_buffers(meter, first, len(events)), MOST_BUFFERS))


def _line(event: Event) -> str:
    """Write the line of a call as the visualizer looks for it in a stack trace."""
    path, _, line = event.where.rpartition(":")
    return f'File "{path}", line {line}, in {event.op}'


def _tensor(use: TensorUse) -> tuple[Any, ...]:
    layout = use.sharding or "INTERLEAVED"
    config = (
        f"MemoryConfig(memory_layout=TensorMemoryLayout::{layout},buffer_type=BufferType::{use.memory},"
        "shard_spec=std::nullopt)"
    )
    shape = f"Shape({list(use.shape)})"
    device = use.devices[0] if use.devices else None
    kinds = f"DataType.{use.dtype}", f"Layout.{use.layout}"
    return use.tensor, shape, *kinds, config, device, use.address, _NUMBERS[use.memory]


def _buffers(meter: Meter, first: dict[int, int], operations: int) -> Iterator[tuple]:
    """Yield what is allocated after each operation."""
    live: dict[Place, Allocation] = {}
    place = 0
    for number in range(operations):
        while place < len(meter.history) and meter.history[place][1] <= number:
            sign, _, allocation = meter.history[place]
            follow(live, sign, allocation)
            place += 1
        for one in live.values():
            yield number, first[one.mesh], one.address, one.bytes, _NUMBERS[one.memory], None
