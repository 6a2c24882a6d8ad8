"""What a Tenstorrent device rounds: storage formats, the matrix unit, element-wise operations, the packer.

``matmul`` and ``eltwise`` give what the destination registers hold, ``pack`` what the packer writes from them into L1,
``accumulate`` what it adds there. All take and return float32 tensors whose values are exactly those held, also for
16-bit destinations and packed formats.

Two levels have one interface: ``exact`` gives the bits of Tenstorrent's simulator ttsim 1.10, ``fast`` the cheap
formulas that come within a few per cent of its error.
"""

from refsim.numerics.eltwise import eltwise
from refsim.numerics.formats import FORMATS, from_host
from refsim.numerics.matrix_unit import ARCHES, FIDELITIES, LEVELS, matmul
from refsim.numerics.packer import accumulate, pack

__all__ = ["ARCHES", "FIDELITIES", "FORMATS", "LEVELS", "accumulate", "eltwise", "from_host", "matmul", "pack"]
