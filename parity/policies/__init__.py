"""Buffer policies of ring attention and of fused gathers, model-checked: which of them survive every delay?

A policy is a program per thread of every device of a mesh axis: a device writes shards into buffers of its neighbours
over ordered links, computes on what has arrived, and goes on to the next layer. Nothing else synchronises the devices,
as nothing else does along the sequence axis of a transformer. What the programs are stands in ``gathered`` and
``slotted``; on which topology, with how many links and threads, says ``operations.Fabric``.

Judged in three ways that must agree:
    proof   vector clocks over the program (``refsim.runtime.watch.hazards``): holds for every delay
    search  breadth-first over all interleavings of a few devices: the shortest schedule that goes wrong
    clock   seeded delays on a clock, any size: which read gets bytes of the wrong layer, and from what lag on
"""
