"""What a block's shape says of its modulation, and when its chunks are made."""

from __future__ import annotations

from refsim.blocks.shape import Chunks, ModulationShape, chunks


def test_chunks_are_named_by_stage_and_part():
    assert chunks("attn", "prompt.ff") == (
        "attn.shift",
        "attn.scale",
        "attn.gate",
        "prompt.ff.shift",
        "prompt.ff.scale",
        "prompt.ff.gate",
    )
    assert ModulationShape("norm1.linear", 64).scales == (1, 4)
    assert ModulationShape("norm1.linear", 64, chunks("attn", "ff", parts=("scale", "gate"))).scales == (0, 2)


def test_a_linear_runs_once_when_the_first_of_its_chunks_is_needed():
    ran = []

    def makes(name: str, values: list[int]):
        def make() -> list[int]:
            ran.append(name)
            return values

        return make

    both = (
        (chunks("attn", "prompt.attn"), makes("norm1", [1, 2, 3, 4, 5, 6])),
        (("ff.gate", "ff.scale"), makes("norm2", [7, 8])),
    )
    made = Chunks(both)
    assert ran == []
    assert made.of("attn") == (1, 2, 3)
    assert made.of("prompt.attn") == (4, 5, 6)
    assert ran == ["norm1"]
    assert made.of("ff") == (None, 8, 7)
    assert made.of("attn2") == (None, None, None)
    assert ran == ["norm1", "norm2"]
