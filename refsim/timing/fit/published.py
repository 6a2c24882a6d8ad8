"""Operations measured by others, from public documents of tenstorrent/tt-metal; all of it calibration data.

``gemm.csv``: tech_reports/GEMM_FLOPS/GEMM_FLOPS.md, default configurations, traced, DRAM: M, K, N and device
utilisation in percent of the cores (rows x columns) at the fidelity.

``linears.csv``: linears, gathers and ring attention on Galaxies, bf16, HiFi2, device kernel time. M, K (gathered) and
N; cores for M x cores for N; blocks and subblock in tiles; devices of the ring, links; microseconds.

    MiniMax-H3       models/tt_dit/models/minimax_h3_{wormhole,blackhole}/agmm_fused_vs_unfused.md, and ff2.md and
                     README.md beside it: its tensor parallel ring of 4, fp32 accumulation; attention:
                     minimax_h3_wormhole/sdpa.md and pull request 54481. The linears with a SwiGLU epilogue are left
                     out: it is a fifth of their time and no model here has it. N = 1344 includes its addcmul, some 7 %.
    Wan2.2-TI2V-5B   Wan2_2_TI2V_nadim_opt.md@01002d7a, 3.2

    mm  minimal_matmul          all_gather      all_gather_async of (M, K/4)
    all_gather_matmul           matmul_reduce_scatter  a strided one, with addcmul; reduce_scatter  ..._minimal_async
    sdpa  ring joint attention of M rows a device, K heads of width N; blocks: 0, q chunk, k chunk

PASSES: minimal_matmul's neighbours in the same block: bytes read and written, microseconds (README.md of
minimax_h3_wormhole, "small ops"; for Blackhole the norms of agmm_fused_vs_unfused.md, 348 GB/s, which is what cores at
arbitrary places read in bh_dram_read_microbenchmark.md: 344).
"""

from __future__ import annotations

from dataclasses import dataclass

from refsim.base.mesh import Topology

PASSES = {
    "wormhole_b0": {"BinaryNg": (147e6, 997), "Ternary": (147e6, 629), "NLPConcatHeads": (98e6, 573),
                    "NlpCreateHeads": (98e6, 568), "UntilizeWithUnpadding": (269e6, 1764), "Concat": (260e6, 1511),
                    "TilizeWithValPadding": (261e6, 1355)},
    "blackhole": {"DistributedRMSNorm": (522e6, 1500)},
}  # fmt: skip

Attended = tuple[str, int, int, int, int, int, int, str]
SDPA_GATES: dict[Attended, str] = {
    ("Wan2.2", 9472, 10, 128, 128, 8, 110, "bf16"): "288 512 70.7",
    ("Wan2.2", 8544, 10, 128, 128, 4, 100, "bf16"): "288 512 68.9",
    ("MLA", 3200, 32, 576, 128, 8, 110, "bfp8"): "160 320 66.3",
    ("MLA", 3200, 29, 576, 128, 4, 100, "bfp8"): "160 320 63.2",
}
"""Ring joint attention as tt-metal's performance gates expect it on Blackhole (tests/nightly/blackhole/sdpa/
test_ring_joint_sdpa.py@622c6fb9), of which nothing is fitted: (model, rows a device, heads, width, width of a value,
ring, cores, dtype of keys and values) -> q chunk, k chunk, math utilisation in percent at HiFi2. MLA is causal and
balanced, has one head of keys, and half of its products count.
"""
SDPA_SERIAL: dict[Attended, str] = {("MLA", 3200, 32, 576, 128, 8, 110, "bfp8"): "160 160 46.7"}
"""A line like those above, of the causal kernel as it was until 29 April 2026: products and exponentials took turns and
each head read the keys for itself (12.95 ms: pull request 42875, before; 43120 is what changed it).
"""
FUSED_GATHERS = """2336 3072 2304 275.8|2336 3072 768 229.2|2336 3072 3584 352.1|1024 3072 2304 149.5
|1024 3072 768 108.5|1024 3072 3584 203.8"""
"""Gather and matmul of Wan2.2-TI2V-5B on a Blackhole Galaxy's ring of 4 with 2 links, after block tuning
(Wan2_2_TI2V_nadim_opt.md@01002d7a, 7): M, K (gathered), N, microseconds. Nothing is fitted on them.
"""


@dataclass(frozen=True)
class Loop:
    """A denoising loop that somebody measured, of a model whose figures are not judged: ``seconds`` a step."""

    model: str
    latent: tuple[int, ...]
    mesh: str
    parallel: str
    seconds: float
    chunks: tuple[int, int] | None = None
    topology: Topology = Topology.RING
    fsdp: bool | None = None


_FLUX2 = ("flux2-dev", "sp4@0_tp8@1")
_TI2V = ("wan22-ti2v-5b", "sp8_tp4")
UNSEEN_LOOPS = (
    Loop(_FLUX2[0], (128, 128), "bh-galaxy", _FLUX2[1], 0.1450),
    Loop(_FLUX2[0], (256, 256), "bh-galaxy", _FLUX2[1], (20.91 - 7.8) / 50 + 0.1450),
    Loop(_TI2V[0], (21, 44, 80), "bh-galaxy", _TI2V[1], 10.701 / 40, (160, 512)),
    Loop(_TI2V[0], (31, 44, 80), "bh-galaxy", _TI2V[1], 19.76 / 40, (160, 512)),
    Loop(_TI2V[0], (21, 30, 52), "bh-galaxy", _TI2V[1], 5.667 / 40, (160, 512)),
    Loop(_FLUX2[0], (128, 128), "galaxy", _FLUX2[1], 0.557, fsdp=True),
    Loop("motif-6b", (128, 128), "galaxy", "cfg2@1_sp4@0_tp4@1", 0.1609, topology=Topology.LINEAR),
)
"""No parameter of an operation is fitted on them; ``loops.py`` takes from Blackhole's what loops take beyond kernels.
Flux.2 dev: tt-metal pull requests 46547 and 45786 (Wormhole), and issue 45244, whose two totals differ by what 50 steps
at 2048 x 2048 take longer, and its decoder. Wan2.2-TI2V-5B: Wan2_2_TI2V_nadim_opt.md@01002d7a, 1; that of 121 frames is
the whole run. Motif: issue 46083, before its regression.
"""


def seconds_without_steps(by_steps: dict[int, float]) -> float:
    """Return what is left of two figures of one pipeline at no steps: encoders, decoder and host."""
    (few, short), (many, long) = sorted(by_steps.items())
    return short - few * (long - short) / (many - few)


def dram_share(arch: str, dram_gbps: float) -> float:
    """Return the median share of the DRAM bandwidth that an op reaches which reads and writes a large tensor once."""
    rates = sorted(size / us / 1000 for size, us in PASSES[arch].values())
    return rates[len(rates) // 2] / dram_gbps
