"""TT-Lang kernels of programs on the mock: ``import ttl`` is answered by their functional simulator.

    @ttl.operation --> operation ``ttl.NAME`` of the shadow --> its rule: the simulator, on each device's values

``tt-lang-sim`` runs a kernel's threads on torch tensors, in this process and beside the real ttnn: what it does to the
process when it is imported is undone (:mod:`tt_impl.mock.ttlang.simulator`). A kernel is called with tensors of the
mesh; its operation writes those that the kernel writes (:mod:`tt_impl.mock.ttlang.kernels`). So kernels stand in
traces, in the log of events and in reports like any operation. Values are those of torch in the dtype of each tensor,
not of a device's units: evidence of its own kind.
"""
