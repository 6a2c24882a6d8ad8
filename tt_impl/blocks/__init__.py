"""The two blocks that diffusion transformers are made of; counterparts of ``refsim.blocks``.

What a model's blocks are made of is said once for both backends, in ``refsim.blocks.shape``.
"""
