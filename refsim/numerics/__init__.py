"""What a Tenstorrent device rounds: storage formats, matrix unit, vector unit, packer, and operations made of them.

``matmul``, ``eltwise``, ``reduce`` and ``sfpu`` give what the destination registers hold, ``pack`` what the packer
writes from them into L1, ``accumulate`` what it adds there, ``typecast`` what a tensor holds after one. All take and
return float32 tensors whose values are exactly those held, also for 16-bit destinations and packed formats.

Two levels have one interface: ``exact`` gives the bits of Tenstorrent's simulator ttsim 1.10, ``fast`` the cheap
formulas that come within a few per cent of its error. Guide: docs/numerics.md.
"""

from refsim.numerics.eltwise import eltwise
from refsim.numerics.formats import FORMATS, from_host
from refsim.numerics.matrix_unit import ARCHES, FIDELITIES, LEVELS, matmul
from refsim.numerics.packer import accumulate, pack
from refsim.numerics.reduce import reduce
from refsim.numerics.sfpu import FUNCTIONS, sfpu
from refsim.numerics.typecast import typecast

__all__ = [
    "ARCHES",
    "FIDELITIES",
    "FORMATS",
    "FUNCTIONS",
    "LEVELS",
    "accumulate",
    "eltwise",
    "from_host",
    "matmul",
    "pack",
    "reduce",
    "sfpu",
    "typecast",
]
