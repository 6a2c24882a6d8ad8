"""Composite operations as kernels of tt-metal run them: which unit does what, and what is packed on the way.

One module a family, its data path drawn on top. All take and return float32 tensors of exactly the values held.
"""

from refsim.numerics.composites.compute import Compute

__all__ = ["Compute"]
