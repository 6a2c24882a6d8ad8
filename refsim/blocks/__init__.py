"""The two blocks that diffusion transformers are made of, written once for all models.

``shape`` says what a model's blocks are made of, for both backends; ``double`` and ``single`` are the blocks.
"""
