"""Mutations that nothing can tell from the program, each with the proof; they are not counted.

One that a trace or a unit test tells apart is none, though every answer stays.
"""

from __future__ import annotations

from parity.mutation.sites import Mutation

EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("tt_impl/parallel/programs.py", "(hw[0] * hw[1], min(hw))", "(min(hw), hw[0] * hw[1])"): (
        "of up to 4 tiles only 2 x 2 are more than one wide either way, and nothing is larger."
    ),
    **{
        ("refsim/layers/convolution.py", f"self.{kernel} // 2", f"(self.{kernel} % 2)"): (
            "decoders have kernels of 1 and 3, and of 1 nothing is exchanged: both are 1."
        )
        for kernel in ("_kernel", "_space")
    },
    **{
        (
            "refsim/layers/convolution.py",
            f"x = exchange_halo(self._device, x, shards, by=self.{kernel} // 2)",
            f"x = exchange_halo(self._device, x, shards, by=self.{kernel} // 3)",
        ): "decoders have kernels of 1 and 3, and of 1 nothing is exchanged: both are 1."
        for kernel in ("_kernel", "_space")
    },
    **{
        (
            "refsim/layers/embeddings.py",
            line,
            line.replace("(0, 0)", "(1, 0)"),
        ): "a span to a row that is not behind its first one has no rows."
        for line in (
            "return torch.cat(self.table_rows(spans or [(0, 0)]))",
            "self.table_rows([(0, 0)])  # declares the table as used, reads nothing",
        )
    },
    **{
        (f"refsim/{file}.py", whole, f"(-(-{whole}))"): "what does not divide is refused, or padded, before."
        for file, wholes in {
            "models/cogvideox/embeddings": ("frames // self._deep", "height // p", "width // p"),
            "models/wan22/embeddings": ("n // p",),
            "layers/embeddings": ("height // p", "width // p"),
            "pipelines/hosts/base": ("height // vae.scale", "width // vae.scale"),
            "pipelines/hosts/cogvideox": ("height // scale", "width // scale"),
            "pipelines/hosts/wan": ("height // spatial", "width // spatial"),
            "parallel/tensor": ("padded // group.size",),
            "parallel/sequence": ("padded_tokens(logical_n, factor) // factor",),
            "parallel/cfg": ("batch // group.size",),
            "parallel/halo": ("round_up(size, factor) // factor",),
            "layers/group_norm": ("groups // tp.size",),
        }.items()
        for whole in wholes
    },
    (
        "refsim/parallel/usp.py",
        "with ulysses(device, qkv[0].shape[1]) as exchange:",
        "with ulysses(device, qkv[1].shape[1]) as exchange:",
    ): "queries, keys and values have as many heads.",
    (
        "refsim/models/wan22/config.py",
        'if config.get("out_channels", 0) is None:',
        'if config.get("out_channels", 1) is None:',
    ): "neither is None.",
    ("refsim/models/dflash/config.py", "(own, given)", "(given, own)"): "both are checked, whichever comes first.",
    ("refsim/ccl/broadcast.py", "0 < right <= reach_right", "(0 <= right <= reach_right)"): (
        "the root, which alone is 0 away from itself, has had its turn."
    ),
    (
        "refsim/layers/kv_cache.py",
        "stop > self._memory[0].shape[2]",
        "(stop >= self._memory[0].shape[2])",
    ): "a cache that grows a row before it must holds the same rows.",
    (
        "refsim/models/wan22/transformer.py",
        "self._image is not None and encoder_hidden_states_image is not None",
        "(self._image is not None or encoder_hidden_states_image is not None)",
    ): "a model that embeds an image is given one, and no other: the rest is refused before.",
    (
        "refsim/layers/norm.py",
        "padded_features(features, tp.size) // tp.size",
        "(-(-padded_features(features, tp.size) // tp.size))",
    ): "padded features are whole tiles of every member, so that they divide.",
    (
        "tt_impl/parallel/sdpa.py",
        "(options.mesh.arch, options.parallel.sp, options.parallel.tp)",
        "(options.mesh.arch, options.parallel.tp, options.parallel.sp)",
    ): "the one entry of the table has sp and tp alike.",
    ("tt_impl/layers/pixels.py", "_WIDE = 256", "_WIDE = 257"): "channels are whole tiles, so that 257 are none.",
    **{
        (
            "tt_impl/layers/conv3d.py",
            *change,
        ): "blocks take whole tiles of 2048 bytes, of which 1 200 000 is no multiple."
        for change in (
            ("1_200_000", "1200001"),
            ("1_200_000", "1199999"),
            ("l1_bytes(*pair) <= L1_BYTES", "(l1_bytes(*pair) < L1_BYTES)"),
        )
    },
    **{
        (
            "tt_impl/parallel/programs.py",
            "4400",
            other,
        ): "a MiB has room for 238 packets of either size, and a part more."
        for other in ("4399", "4401")
    },
    (
        "tt_impl/parallel/vocab.py",
        "1e30",
        "1.1e+30",
    ): "no logit comes near either, so that a padded lane is never the first.",
    ("tt_impl/layers/rope.py", "positions_N.float()", "positions_N"): (
        "whole positions, which torch makes fp32 itself before it multiplies them with what is fp32."
    ),
    (
        "tt_impl/layers/group_norm.py",
        "key = samples, pixels",
        "key = (pixels, samples)",
    ): "a key that is looked up where it is made; of two pairs that differ so do the pairs turned round.",
    (
        "tt_impl/layers/paged_cache.py",
        "for number in range(tokens[0].shape[1]):",
        "for number in range(tokens[1].shape[1]):",
    ): "a token has a key and a value, so that there are as many.",
    (
        "tt_impl/models/wan22/block.py",
        '"logical_n": math.prod((frames, rows, columns)),',
        '"logical_n": math.prod((frames, columns, rows)),',
    ): "a product of three whole numbers in another order.",
    (
        "tt_impl/parallel/programs.py",
        "return [n for n in range(1, tiles + 1) if tiles % n == 0]",
        "return [n for n in range(1, tiles + 2) if tiles % n == 0]",
    ): "no number is divided by the one above it.",
    ("refsim/layers/embeddings.py", "features // 2", "(-(-features // 2))"): (
        "sines and cosines are as many, so that the linear behind them refuses an odd number either way."
    ),
    (
        "refsim/models/outline.py",
        "self._o.attention_head_dim // 2",
        "(-(-self._o.attention_head_dim // 2))",
    ): "what is turned are pairs of features: an odd number of them is an error either way.",
    ("refsim/models/cogvideox/embeddings.py", "h / w > th / tw", "(h / w >= th / tw)"): (
        "of equal ratios either way makes a grid as large as the trained one: one side is, the other is rounded to it."
    ),
    ("refsim/parallel/halo.py", "(height, width)", "(width, height)"): (
        "the real part is no larger than the whole: either both agree in rows and columns, or zeros are put around it, "
        "none where nothing is padding."
    ),
    ("refsim/layers/grouped_attention.py", "heads // kv_heads", "(-(-heads // kv_heads))"): (
        "heads divide by the heads of keys: `check_grouped_heads` refuses a config.json where they do not."
    ),
    (
        "refsim/pipelines/hosts/scheduler.py",
        "values = torch.as_tensor(getattr(scheduler, name, 0.0))",
        "values = torch.as_tensor(getattr(scheduler, name, 1.0))",
    ): "what a scheduler lacks is asked only whether it is finite.",
    (
        "refsim/models/mochi/spec.py",
        "frames, height, width = size",
        "(frames, width, height) = size",
    ): "height and width are used alike, in a product.",
    (
        "refsim/pipelines/hosts/schedule.py",
        "generator = torch.Generator().manual_seed(0)",
        "generator = torch.Generator().manual_seed(1)",
    ): "what is drawn is measured and taken away again, whatever it is.",
    (
        "refsim/pipelines/hosts/schedule.py",
        "torch.zeros(shape, dtype=torch.float64)",
        "torch.zeros(shape)",
    ): "zeros of either type take nothing from float64 numbers, and whatever is drawn is float64.",
    (
        "refsim/pipelines/block.py",
        "mine = x[..., start:stop]",
        "mine = x[..., start:stop + 1]",
    ): "the padding, which is counted from what was taken, is one less than none then and takes the lane away again.",
    (
        "refsim/layers/grouped_attention.py",
        "(query_BHNE, key_BGSE, value_BGSE)",
        "(key_BGSE, query_BHNE, value_BGSE)",
    ): "all three are checked, whichever comes first.",
    (
        "refsim/parallel/vocab.py",
        'nothing = logits.new_full((*logits.shape[:-1], 1), float("-inf"))',
        'nothing = logits.new_full((*logits.shape[:-1], 2), float("-inf"))',
    ): "behind one lane of minus infinity a second is neither the first best nor above the second best.",
}
"""(file, the source that is changed, what it is changed to) -> why the answers are the same.

The source is the changed expression, or, where that is found in many places, all of the changed lines.
"""


def proof(mutation: Mutation, source: str) -> str:
    """Why a mutation of a file's ``source`` is equivalent; empty if it is not known to be."""
    changes = (mutation.before, mutation.after), changed_lines(mutation, source)
    return next((why for change in changes if (why := EQUIVALENT.get((mutation.file, *change)))), "")


def changed_lines(mutation: Mutation, source: str) -> tuple[str, str]:
    """Return the lines that a mutation changes and what they become, without the space around them."""
    lines = mutation.diff(source).splitlines()[3:]
    before, after = ("\n".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return before, after
