"""``python -m benchmarks.upstream``, see :mod:`benchmarks.upstream.campaign`."""

import sys

from benchmarks.upstream.campaign import main

sys.exit(main())
