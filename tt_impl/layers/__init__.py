"""Layers of the device wing; the files are named as their counterparts in ``refsim.layers``.

Activations are (B, 1, rows, D). The residual streams live cut: rows over sp, features over tp.
"""
