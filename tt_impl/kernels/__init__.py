"""The drafter's kernels in TT-Lang, one file each.

They import ``ttl`` and ``ttnn`` as on a device. On a CPU ``ttl`` is the functional simulator's (``tt-lang-sim``): run
them through ``tt_impl.kernels.simulator``, or on tensors of a mock mesh in any program there
(:mod:`tt_impl.mock.ttlang`).

Every kernel is made for a grid of nodes, takes tensors of whole 32 x 32 tiles and spreads their blocks over the nodes:
node n works on blocks n * per .. (n + 1) * per - 1, the last ones on fewer. A data movement thread fills dataflow
buffers, the compute thread turns them into the next, another data movement thread drains the last. Buffers hold two
blocks, so that one is filled while the other is read.
"""
