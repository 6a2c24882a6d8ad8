"""What the checks say of logs written by hand: kinds, severities and places, and beside each what is right."""

from __future__ import annotations

import pytest

from tests.harness.conftest import HAS_TTNN, REASON


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
def test_logs() -> None:
    from tests.harness.programs import logs

    logs.check()
