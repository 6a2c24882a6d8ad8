"""``refsim report sdpa``: which chunk sizes of ring attention fit L1, for what the models pass it on each mesh."""

from __future__ import annotations

from collections.abc import Iterator

from refsim.base.errors import RefsimError
from refsim.base.options import RunOptions
from refsim.files.tables import as_markdown
from refsim.models.registry import get_published, latent, spec_of
from tt_impl.reports import memory, systems
from tt_impl.reports.systems import Row, System, Table
from tt_impl.run.launch import Worker

PROGRAM = "tt_impl.pipelines.sdpa_chunks:program"
RING = "ttnn.transformer.ring_joint_scaled_dot_product_attention"
SYSTEMS: tuple[System, ...] = (  # model, size, mesh, configuration
    ("sd35-large", "1024", "quietbox", "cfg2_sp2_tp2"),
    ("sd35-large", "1024", "galaxy", "cfg2_sp4_tp4"),
    ("sd35-large", "1024", "bh-loudbox", "cfg2_sp2_tp2"),
    ("sd35-large", "1024", "bh-galaxy", "cfg2_sp4_tp4"),
    ("flux1-dev", "1024", "t3k", "sp2_tp4"),
    ("flux1-dev", "1024", "galaxy", "sp4_tp8"),
    ("flux1-dev", "1024", "bh-galaxy", "sp4_tp8"),
    ("wan22-t2v-a14b", "480p", "t3k", "sp2_tp4"),
    ("wan22-t2v-a14b", "480p", "bh-loudbox", "sp4_tp2"),
    ("wan22-t2v-a14b", "720p", "galaxy", "sp8_tp4"),
    ("wan22-t2v-a14b", "720p", "bh-galaxy", "sp8_tp4"),
    ("cogvideox-5b", "480p", "t3k", "sp2_tp4"),
)
_FULL = ("beyond max L1 size", "clash with L1 buffers")
"""What ttnn says of circular buffers that are too large."""
_WITH_PROMPT = 8
"""Tensors given to the op: q, k, v, then the prompt's q, k, v, then the two buffers."""


def swept(system: System, worker: Worker) -> Row:
    """Try all chunk sizes for one system, or the sentence that says why there are none."""
    name, size, mesh, parallel = system
    options = RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock")
    try:
        q, rear = streams(name, size, options, worker)
        outcome = worker.execute(PROGRAM, options, {"q": q, "rear": rear}, values=False)
    except RefsimError as error:
        return {"system": list(system)} | systems.missing(error)
    return {"system": list(system), "ran": outcome.ran, "q": q, "rear": rear} | outcome.report


def streams(name: str, size: str, options: RunOptions, worker: Worker) -> tuple[list[int], list[int] | None]:
    """Shapes of one device's queries and its prompt's (None if it brings none), as the model's first block has them."""
    _, model = get_published(name)
    spec = spec_of(model)
    one = dict.fromkeys(spec.block_counts(model.config), 1)
    small = model.but(config=spec.with_block_counts(model.config, one))
    shapes = memory.input_shapes(small, latent(model, size)[1], options)
    ops = memory.plan(small, options, shapes, run=worker.execute).ops
    inputs = next(op["inputs"] for op in ops if op["op"] == RING)
    return inputs[0], inputs[3] if len(inputs) == _WITH_PROMPT else None


def markdown(rows: list[Row]) -> Iterator[str]:
    """Write the lines of ``sdpa_chunks.md``."""
    yield (
        "# Chunk sizes of ring attention\n\nMade by `refsim report sdpa`; numbers: "
        "[sdpa_chunks.json](sdpa_chunks.json). KiB of the fullest core's L1 (circular buffers and semaphores) for "
        "`ring_joint_scaled_dot_product_attention` on what one device of the published model has, on mock meshes. "
        "*~~struck out~~*: ttnn refuses the call, as its circular buffers end beyond the core's L1 or run into its "
        "semaphores. **bold**: the pair "
        "that the models take. Rows of a query chunk to the side, of a key chunk on top.\n"
    )
    for row in rows:
        yield from _table(row)


def _table(row: Row) -> Iterator[str]:
    name, size, mesh, parallel = row["system"]
    yield f"## {name} {size}, {mesh} {parallel}\n"
    if "missing" in row:
        yield f"{row['missing']}\n"
        return
    prompt = f", prompt {'x'.join(map(str, row['rear']))}" if row["rear"] else ", no prompt"
    yield f"q {'x'.join(map(str, row['q']))}{prompt}; {row['ran']}; {row['total'] / 1024:.0f} KiB of L1.\n"
    keys = sorted({cell["k"] for cell in row["rows"]})
    queries = sorted({cell["q"] for cell in row["rows"]})
    cells = ([q, *(_cell(cell, row["used"]) for cell in row["rows"] if cell["q"] == q)] for q in queries)
    yield as_markdown(cells, ["q \\ k", *keys])
    yield ""
    refused = {cell["refused"] for cell in row["rows"]} - {""}
    if others := sorted(sentence for sentence in refused if not any(words in sentence for words in _FULL)):
        yield "Refused for another reason: " + "; ".join(others) + "\n"


def _cell(cell: Row, used: list[int]) -> str:
    text = f"{cell['bytes'] / 1024:.0f}"
    if cell["refused"]:
        return f"~~{text}~~"
    return f"**{text}**" if [cell["q"], cell["k"]] == used else text


TABLE = Table(SYSTEMS, swept, markdown, "sdpa_chunks.json", "sdpa_chunks.md")
