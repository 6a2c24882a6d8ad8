"""What a child imports and does in tests of it; itself it imports next to nothing."""

from __future__ import annotations

import os
import time


def shown(tell, file):
    """In the child: where the packages come from, and a line of a file as it is imported there."""
    from refsim.parallel import padding

    tell({"file": padding.__file__, "tile": padding.padded_tokens(1, 2)})
    if file == "raise":
        raise ValueError("on purpose\nand more")
    if file == "sleep":
        time.sleep(60)
    if file == "die":
        os._exit(3)
    if file == "through":
        padding.padded_tokens("1", 2)
