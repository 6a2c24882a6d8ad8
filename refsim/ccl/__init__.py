"""The collectives, step by step as a Ring or a Line runs them, chunk by chunk over send and receive.

Every function takes the device, this rank's tensor and the group; a group of one returns the tensor as it is
(``neighbor_pad`` with its zeros).
In the byte formulas ``B`` is the size of this rank's input in bytes, ``n`` the group size, ``i`` this rank's index.
"""

from refsim.ccl.all_gather import all_gather
from refsim.ccl.all_reduce import all_reduce
from refsim.ccl.all_to_all import all_to_all
from refsim.ccl.broadcast import broadcast
from refsim.ccl.neighbor_pad import neighbor_pad
from refsim.ccl.reduce_scatter import reduce_scatter
from refsim.ccl.shift import shift

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "neighbor_pad", "reduce_scatter", "shift"]
