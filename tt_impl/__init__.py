"""The device backend: the same models in TTNN, on silicon, in ttsim, or on a mock mesh without hardware.

Nothing here is imported by the reference, and importing this package does not import ``ttnn``.
"""
