"""Public name of :mod:`refsim.base.config`."""

from refsim.base.config import ATTENTIONS, Attention, DiTParallelConfig, ParallelFactor, parse_parallel, valid_configs

__all__ = ["ATTENTIONS", "Attention", "DiTParallelConfig", "ParallelFactor", "parse_parallel", "valid_configs"]
