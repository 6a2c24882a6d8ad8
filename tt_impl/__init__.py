"""The device backend: the same models in TTNN, on silicon, in ttsim, or on a mock mesh without hardware.

Nothing here is imported by the reference, and importing this package does not import ``ttnn``.
"""

import os

# ttnn prints its whole configuration when it is imported, unless its logger is told otherwise before.
os.environ.setdefault("LOGURU_LEVEL", "WARNING")
