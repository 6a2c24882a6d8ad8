"""Layers of the models, written once for every parallel configuration; factor 1 is the serial path.

Shape suffixes: B batch, N image tokens, L prompt tokens, D features, H heads, E head features, F hidden features of
the feed-forward, C chunks. Weights come from :class:`refsim.files.checkpoint.Weights`, this member's slice only.
"""
