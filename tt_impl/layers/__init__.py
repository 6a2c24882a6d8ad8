"""Layers of the device backend; the files are named as their counterparts in ``refsim.layers``.

Activations are (B, 1, rows, D). The residual streams live cut: rows over sp, features over tp.
Suffixes of names are refsim's and leave out dims of size one: ``time_BD`` is (B, 1, 1, D), ``x_BHNE`` (B, H, N, E).
"""
