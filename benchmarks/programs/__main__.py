"""``python -m benchmarks.programs``, see :mod:`benchmarks.programs.campaign`."""

import sys

from benchmarks.programs.campaign import main

sys.exit(main())
