"""What Wan2.2 is: its classes, the published size of text-to-video, and what runs around its two experts.

Sources: the model's card and diffusers' classes; parameters counted on meta tensors. How the published figures were
run: the table was written on 19 March 2026, when attention_wan.py@218646a0 gathered first and multiplied then, on a
Ring too, and had no chunks for (sp4, tp2) on Blackhole but the default. Its 168 s of the Blackhole Galaxy are what
test_performance_wan.py allows since 28 February, after a run of 162.8 s (pull request 38690). The Blackhole Galaxy's
figure at 480p is of September: fused, and in the chunks of pull request 41965.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from refsim.base.mesh import Topology
from refsim.models.spec import Companion, DiffusersParts, Figure, ModelSpec, Pair, Published, TtDit

CLASS_NAME = "WanTransformer3DModel"
_TT_DIT = "tt_dit Wan2_2.md@511bc4d0"
_WRITTEN, _RAISED = date(2026, 3, 19), date(2026, 2, 28)
_JANUARY: dict[str, Any] = {"source": "tt-metal pull request 34929", "day": date(2026, 1, 12), "fused": False}
_UNCACHED = "Wan2_2.md@511bc4d0 of tt_dit, no step cached, without export"
_A14B = {
    "_class_name": CLASS_NAME,
    "num_layers": 40,
    "num_attention_heads": 40,
    "attention_head_dim": 128,
    "ffn_dim": 13824,
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": (1, 2, 2),
    "text_dim": 4096,
    "freq_dim": 256,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
    "rope_max_seq_len": 1024,
}
_TI2V_5B = _A14B | {
    "num_layers": 30,
    "num_attention_heads": 24,
    "ffn_dim": 14336,
    "in_channels": 48,
    "out_channels": 48,
}

SPEC = ModelSpec.of_folder(
    "wan22",
    model="transformer:WanTransformer",
    config="WanConfig",
    pipeline="wan:WanPipeline",
    class_names=(CLASS_NAME,),
    kind="transformer",
    latent="video",
    published=(
        Published(
            "wan22-t2v-a14b",
            _A14B,
            parameters=14_288_491_584,
            sizes={"480p": (21, 60, 104), "720p": (21, 90, 160)},
            text=512,
            experts=2,
            steps=40,
            encoders=(Companion("umt5", "umt5-xxl", tokens=512),),
            decoder="wan21-vae",
            figures=(
                Figure("480p", "t3k", "sp2_tp4", seconds=735, steps=40, source=_TT_DIT, day=_WRITTEN),
                Figure("480p", "bh-qb", "sp2_tp2", 466, 40, _TT_DIT, fsdp=True, day=_WRITTEN),
                Figure("480p", "bh-loudbox", "sp4_tp2", 207, 40, _TT_DIT, chunks=(256, 256), day=_WRITTEN),
                Figure("480p", "bh-galaxy", "sp8_tp4", 46, 40, _UNCACHED, Topology.RING, chunks=(288, 512)),
                Figure("720p", "galaxy", "sp8_tp4", 354, 40, _TT_DIT, Topology.RING, fused=False, day=_WRITTEN),
                Figure("720p", "bh-galaxy", "sp8_tp4", 168, 40, _TT_DIT, Topology.RING, fused=False, day=_RAISED),
            ),
            others=(
                Figure("480p", "t3k", "sp2_tp4", 789, 40, fsdp=True, **_JANUARY),
                Figure("720p", "galaxy", "sp8_tp4", 418, 40, topology=Topology.RING, fsdp=True, **_JANUARY),
                Figure("720p", "bh-galaxy", "sp8_tp4", 199, 40, topology=Topology.RING, **_JANUARY),
            ),
            pairs=(
                Pair(
                    "720p",
                    "galaxy",
                    "sp8_tp4",
                    Topology.LINEAR,
                    Topology.RING,
                    157 / 153,
                    "tt-metal pull request 30988",
                    fused=False,
                    of="denoising",
                ),
            ),
            reported=("480p", "720p"),
        ),
        Published(
            "wan22-ti2v-5b",
            _TI2V_5B,
            parameters=4_999_787_712,
            sizes={"720p": (31, 44, 80)},  # 121 frames of 704 x 1280
            text=512,
            steps=50,
            ratios=(4, 16),  # of its own autoencoder, which is not among refsim's
        ),
    ),
    diffusers=DiffusersParts("blocks", ("attn1",), prompt_first=None, rotary=("rotary_emb", 1)),
    tt_dit=TtDit(cfg=False, fsdp=True, pads_heads=False),
)
