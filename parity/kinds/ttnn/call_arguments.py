"""What a call of ttnn in a model's forward has to be given, held against what it was given.

The rules are the documented ones: tt_dit's settings of arithmetic (models/tt_dit/layers and blocks of tt-metal), what
``minimal_matmul`` and the mux say of their sizes, and what the documents of ``tt_impl.parallel.programs`` promise of
blocks. A choice is not compared with how it is made: all sizes that are allowed are tried here, and none may be better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

from refsim.base.mesh import MeshSpec, Topology

TILE = 32
LARGEST_BLOCK = 8
SUBBLOCK = 4
"""Tiles of a block that fit L1, and those that the destination holds with fp32 sums."""
MUX_BYTES = 1 << 20
PACKET_BYTES = 4400
ENOUGH_PACKETS = 48
FEWER_BUFFERS = {"GELU_TANH": 1, "SILU": 2}
"""Packets a channel has less by the fused activation, which ttnn's key of a program lacks (tt-metal #57357): the number
of packets is in the key, so that no call runs the program that was built for another activation."""
LONG = 512
"""Rows on a device from which on activations lie in DRAM."""
SCRATCH_BYTES = 512 * 1024
"""Of a core's L1 for what lives within one operation."""
CONV_BYTES = 1_200_000
SUM_CHANNELS = 4 * TILE
CONV_SIDE = 8
"""Of a core's L1 for a convolution's blocks; channels whose fp32 sums the destination holds; rows and columns."""
PIXEL_BYTES = 512 * 1024
"""Of a core's L1 for keys and values of an autoencoder's attention, beside its queries, sums and results."""

LINEAR = {"fidelity": "HiFi2", "approximate": True, "fp32": True, "l1_accumulation": True}
NORM = {"fidelity": "HiFi4", "approximate": False, "fp32": True, "l1_accumulation": False}
ATTENTION = {"fidelity": "HiFi2", "approximate": False, "fp32": False}
CHUNKS = {("blackhole", 4, 4): (128, 512)}
"""tt_dit's chunks of queries and keys of SD3.5 by architecture, sp and tp, where they are not the usual ones."""
USUAL_CHUNKS = (256, 512)
LOCAL_CHUNK = 128

Seen = dict[str, Any]


@dataclass(frozen=True)
class Where:
    """The mesh of a run: its spec, the compute grid (x, y) of a device, the submesh's shape, and the factors."""

    spec: MeshSpec
    grid: tuple[int, int]
    shape: tuple[int, int]
    sp: int
    tp: int

    def is_ring(self, axis: int) -> bool:
        return self.shape[axis] == self.spec.shape[axis] and self.spec.topology(axis) is Topology.RING


def wrong(call: Seen, where: Where) -> list[str]:
    """Return a sentence about everything that a call should have been given and was not; its keys are those of
    ``tt_impl.programs.recorded_calls``.
    """
    if "inputs" not in call:
        return [f"{call['op']}: {sentence}" for sentence in _choice(call)]
    sentences = [*_arithmetic(call), *_dtypes(call), *_collective(call, where)]
    if "matmul" in call:
        sentences += [*_matmul(call, where), *_hidden(call)]
    if "conv" in call:
        sentences += _convolution(call, where)
    if "attention" in call["op"]:
        sentences += _attention(call, where)
    return [f"{call['op']} on {[shape for shape, *_ in call['inputs']]}: {sentence}" for sentence in sentences]


def _arithmetic(call: Seen) -> list[str]:
    """Check fidelity, and what sums are kept in."""
    op = call["op"].rpartition(".")[2]
    settings = call.get("compute", {})
    if "norm" in op:
        wanted: dict[str, Any] = NORM
    elif "attention" in op:
        wanted = ATTENTION
    elif op == "matmul":  # sums of statistics and of masks, which norms ask for, and products of small tables
        wanted = {"fp32": True} if settings else {}
    elif op == "linear" or "minimal_matmul" in op:
        wanted = NORM if call["inputs"][0][2] == "FLOAT32" else LINEAR  # two passes keep too few digits of fp32
    else:
        wanted = {}
    return [
        f"{name} is {settings.get(name)}, not {value}" for name, value in wanted.items() if settings.get(name) != value
    ]


def _dtypes(call: Seen) -> list[str]:
    """Check that fp32 results are not made of what was rounded, and that a concatenation joins several tensors."""
    op = call["op"].rpartition(".")[2]
    dtypes = [dtype for *_, dtype, _ in call["inputs"]]
    sentences = list[str]()
    wide = any(dtype == "FLOAT32" for *_, dtype, _ in call["outputs"])
    if call.get("squares"):
        sentences += [] if wide else ["a square, whose mean less that of its root leaves little, is rounded"]
    elif wide and op in ("add", "subtract", "multiply") and "FLOAT32" not in dtypes:
        sentences.append("a result is fp32, and both of what it is made of were rounded")
    if op in ("add", "subtract", "multiply") and len(set(dtypes)) > 1 and "dtype" not in call["arguments"]:
        sentences.append("it takes fp32 and what was rounded, and is not told which the result is")
    if op == "matmul" and dtypes[:2] == ["FLOAT32", "BFLOAT16"]:
        sentences.append("statistics in fp32 are multiplied with bf16")
    if op == "linear" and dtypes[:2] == ["BFLOAT16", "FLOAT32"]:
        sentences.append("what weights in fp32 multiply was rounded")
    if op == "concat" and len(dtypes) == 1:
        sentences.append("it joins one tensor, which copies it for nothing")
    return sentences


def _collective(call: Seen, where: Where) -> list[str]:
    """Check for every link of the axis, and for a ring where there is one: what has no ends, but for pictures."""
    axis = call["arguments"].get("cluster_axis")
    arguments = call["arguments"]
    if axis is None or "num_links" not in arguments:
        return []
    sentences = []
    if arguments["num_links"] != where.spec.links[axis]:
        sentences.append(f"{arguments['num_links']} links, and the axis has {where.spec.links[axis]}")
    kind = "Ring" if where.is_ring(axis) else "Linear"
    if arguments.get("topology") != kind:
        sentences.append(f"it is {arguments.get('topology')}, and the axis {kind}")
    if "intermediate_memory_config" in arguments:  # partial sums, of both directions of a line
        _, padded, dtype, _ = call["inputs"][0]
        both = 2 * math.prod(padded) * (4 if dtype == "FLOAT32" else 2)
        wanted = "L1" if both <= SCRATCH_BYTES * math.prod(where.grid) else "DRAM"
        if arguments["intermediate_memory_config"] != wanted:
            sentences.append(
                f"{both} bytes of partial sums lie in {arguments['intermediate_memory_config']}, not in {wanted}"
            )
    if "num_workers_per_link" in arguments:
        sentences += _mux(
            where.grid[0],
            arguments["num_links"],
            arguments["num_workers_per_link"],
            arguments["num_buffers_per_channel"],
            FEWER_BUFFERS.get(arguments.get("fused_activation"), 0),
        )
    return sentences


def _choice(seen: Seen) -> list[str]:
    """Check what was chosen without a call."""
    if "mux" in seen:
        return _mux(**seen["mux"])
    if "lies" in seen:
        return _lies(seen["lies"])
    arch, sp, tp, *chunks = seen["chunks"].values()
    usual = CHUNKS.get((arch, sp, tp), USUAL_CHUNKS)
    return [] if tuple(chunks) == usual else [f"{chunks} rows on {arch} over sp {sp}, tp {tp}, not {usual}"]


def _mux(columns: int, links: int, workers: int, buffers: int, fewer: int = 0) -> list[str]:
    """Check that as few cores of a row share a link as leave none without one; none do where that cannot be.

    Args:
        fewer: packets that a channel has less than fit.
    """
    right = [n for n in range(1, columns + 1) if math.ceil(columns / n) == links]
    if not right and not workers:
        return []
    sentences: list[str] = []
    if workers not in right:
        sentences.append(f"{workers} workers a link leave links of {columns} columns without one")
    elif workers > min(right):
        sentences.append(f"{workers} workers share a link, where {min(right)} would do")
    room = [n for n in range(ENOUGH_PACKETS + 1) if n * workers * PACKET_BYTES <= MUX_BYTES]
    if buffers != max(room) - fewer:
        sentences.append(f"{buffers} packets a channel, where {max(room)} fit and {max(room) - fewer} are right")
    return sentences


def _lies(what: Seen) -> list[str]:
    """Check that few rows lie in L1, and what of one operation's own a core has room for; all else in DRAM."""
    small = what["rows"] < LONG if "rows" in what else what["bytes"] <= SCRATCH_BYTES * what["cores"]
    wanted = "L1" if small else "DRAM"
    return [] if what["in"] == wanted else [f"{what} is not in {wanted}"]


def _convolution(call: Seen, where: Where) -> list[str]:
    """Check blocks of channels: no pair of more arithmetic fits a core's memory; pixels go eight by eight."""
    video = call["inputs"][0][0]
    block = call["conv"]
    taps = math.prod(call["arguments"]["kernel_size"])
    sentences = [] if tuple(block["grid"]) == where.grid else [f"cores {block['grid']}, not {list(where.grid)}"]
    outs = [n for n in _tiles_of(call["arguments"]["output_channels"]) if n <= SUM_CHANNELS or n % SUM_CHANNELS == 0]
    fitting = [pair for pair in product(_tiles_of(video[4]), outs) if _conv_bytes(*pair, taps) <= CONV_BYTES]
    best = max(fitting, key=lambda pair: (math.prod(pair), pair[0]), default=(TILE, TILE))
    if (block["c_in"], block["c_out"]) != best:
        sentences.append(f"blocks of {block['c_in']} and {block['c_out']} channels, not {best}")
    sides = [min(CONV_SIDE, n) for n in video[2:4]]
    if [block["h"], block["w"]] != sides:
        sentences.append(f"blocks of {block['h']} x {block['w']} pixels, not {sides}")
    return sentences


def _tiles_of(channels: int) -> list[int]:
    return [n for n in range(TILE, channels + 1, TILE) if channels % n == 0]


def _conv_bytes(c_in: int, c_out: int, taps: int) -> int:
    """Add up a core's patches twice (as rows and as tiles) and kernel in bf16, sums in fp32 and the result in bf16."""
    pixels = CONV_SIDE**2
    inner = math.ceil(taps * c_in / TILE) * TILE
    return 2 * (2 * pixels * inner) + 2 * inner * c_out + (4 + 2) * pixels * c_out


def _matmul(call: Seen, where: Where) -> list[str]:
    """Check blocks: no other allowed one leaves fewer cores idle, computes less padding or waits less."""
    block = call["matmul"]
    gathers = "all_gather" in call["op"]
    (_, x, *_), (_, w, *_) = call["inputs"][:2]
    batch_rows = math.prod(x[:-1])
    grid = (where.grid[0], where.grid[1] - 1) if gathers else where.grid
    sentences = [] if tuple(block["grid"]) == grid else [f"cores {block['grid']}, not {list(grid)}"]
    by_rows = gathers or batch_rows > w[-1]
    along_m, along_n = grid if by_rows else grid[::-1]
    for name, size, cores in (("m", batch_rows, along_m), ("n", w[-1], along_n)):
        tiles = math.ceil(size / TILE / cores)
        best = min(range(1, LARGEST_BLOCK + 1), key=lambda b, t=tiles: (math.ceil(t / b), math.ceil(t / b) * b))
        if block[name] != best:
            sentences.append(f"block {name} of {block[name]} tiles, where {best} would do for {tiles}")
    share = call["inputs"][0][0][-1] if gathers else w[-2]
    tiles = math.ceil(share / TILE)
    ring = call["arguments"].get("topology") == "Ring"
    if ring and tiles % block["k"]:
        sentences.append(f"block k of {block['k']} tiles does not divide a ring's share of {tiles}")
    if block["k"] != min(_k_blocks(tiles, ring), key=lambda k: (_cost(tiles, k), -k)):
        sentences.append(f"block k of {block['k']} tiles is not the best for {tiles}")
    h = block["h"]
    w_ = block["w"]
    areas = [(a * b, -abs(a - b)) for a, b in product(range(1, SUBBLOCK + 1), repeat=2) if _divide(block, a, b)]
    if not _divide(block, h, w_) or (h * w_, -abs(h - w_)) != max(area for area in areas if area[0] <= SUBBLOCK):
        sentences.append(f"a part of {h} x {w_} tiles is not the largest and squarest for {block['m']} x {block['n']}")
    return sentences


def _divide(block: dict[str, int], h: int, w: int) -> bool:
    return block["m"] % h == 0 and block["n"] % w == 0


def _cost(tiles: int, k: int) -> int:
    """Count every block as long as its tiles and one more for its start, padding included."""
    return math.ceil(tiles / k) * (k + 1)


def _k_blocks(tiles: int, ring: bool) -> list[int]:
    return [k for k in range(1, min(LARGEST_BLOCK, tiles) + 1) if not ring or tiles % k == 0]


def _hidden(call: Seen) -> list[str]:
    """Check that a feed-forward's gathered and activated hidden features stay in L1 while a device has few rows."""
    if "fused_activation" not in call["arguments"] or "all_gather" not in call["op"]:
        return []
    rows = call["inputs"][0][0][-2]
    memory = call["outputs"][0][3]
    wanted = "L1" if rows < LONG else "DRAM"
    return [] if memory == wanted else [f"hidden features of {rows} rows lie in {memory}, not in {wanted}"]


def _attention(call: Seen, where: Where) -> list[str]:
    """Check chunks: as long as tt_dit's, but not longer than the rows; in one piece, the largest that divide them."""
    config = call.get("sdpa")
    ring = "ring" in call["op"]
    if config is None:
        return []
    (q, *_), (k, *_) = call["inputs"][:2]
    rows, keys = (-(-x[2] // TILE) * TILE for x in (q, k))
    grid = [where.grid[0], where.grid[1] - ring]
    sentences = [] if config["grid"] == grid else [f"cores {config['grid']}, not {grid}"]
    if config["approximate"]:
        sentences.append("exp is approximated")
    if call["arguments"].get("output_concat_heads"):
        q_wanted = max(n for n in range(TILE, LOCAL_CHUNK + 1, TILE) if rows % n == 0)
        k_wanted = q_wanted
    elif q[1] == 1:  # one head as wide as a decoder: keys and values in bf16, two blocks of each
        fits = max(n for n in (128, 256) if 2 * 2 * 2 * n * q[3] <= PIXEL_BYTES)
        q_wanted = min(64, rows)
        k_wanted = min(fits, keys)
    else:
        usual = CHUNKS.get((where.spec.arch, where.sp, where.tp), USUAL_CHUNKS)
        q_wanted = min(usual[0], rows)
        k_wanted = min(usual[1], keys)
    if (config["q"], config["k"]) != (q_wanted, k_wanted):
        sentences.append(f"chunks of {config['q']} and {config['k']} rows, not {q_wanted} and {k_wanted}")
    return sentences
