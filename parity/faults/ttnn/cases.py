"""The cases that the faults of the device backend are put into, each the smallest that shows what concerns it."""

from __future__ import annotations

from parity.cases import BlockShape, Case, Layout, ModelShape, make_case


def _block(
    *where: str | int, model: str = "sd35_tiny64_block", n: int = 75, text: int = 29, split: bool = False
) -> Case:
    layout = Layout(*where, prompt_layout="split" if split else "replicated")
    return make_case("ttnn_block", model, layout, BlockShape(n, text), dtype="bf16")


def _whole(mesh: str, parallel: str, latent: tuple[int, int], batch: int) -> Case:
    shape = ModelShape(latent, 29, batch)
    guidance = 4.5 if batch == 2 else None
    return make_case("ttnn_transformer", "sd35_tiny64", Layout(mesh, parallel), shape, dtype="bf16", guidance=guidance)


TP2 = _block("n300", "tp2")  # 3 heads on 2 devices: one padded head
TP2_DUAL = _block("n300", "tp2", model="sd35_tiny64_dual_block")
TP8 = _block("t3k-1x8", "tp8")  # 3 heads on 8 devices, 192 features in 256 lanes
SP2 = _block("n300", "sp2")  # 75 tokens as 64 + 11 of 64
SP2_SPLIT = _block("n300", "sp2", split=True, text=45)  # 45 prompt tokens as 32 + 13 of 32
SP2_DUAL = _block("n300", "sp2", model="sd35_tiny64_dual_block")  # two ring attentions with nothing in between
SP2_TP2 = _block("bh-qb", "sp2_tp2")  # two axes of equal size: a wrong axis fits everywhere
SP2_TP4 = _block("t3k", "sp2_tp4")
ULYSSES = _block("t3k", "sp4_tp2", "ulysses", n=150)
USP = _block("t3k", "sp8", "usp", 4, 2, n=150)  # shards 0-4 of 8 hold tokens
CFG2 = _whole("n300", "cfg2", (10, 24), 2)
WHOLE_SP2 = _whole("n300", "sp2", (12, 24), 1)
