"""What the soak calls flat, and that a job's device is freed before the next job."""

from tests.refsim.helpers import run
from tests.soak.__main__ import is_flat, slopes


def test_a_megabyte_in_a_hundred_runs_is_seen():
    at = list(range(0, 2000, 100))
    still, growing = [1000.0 + i % 3 for i in range(20)], [1000.0 + 1000.0 * i for i in range(20)]
    notes = [{"kB": list(both)} for both in zip(still, growing, strict=True)]
    flat, steep = slopes(at, notes, "kB")
    assert abs(flat) < 0.1
    assert steep == 10.0
    assert is_flat([flat], [0.0])
    assert not is_flat([flat, steep], [0.0])
    assert not is_flat([flat], [0.01])


def test_the_device_of_a_job_is_freed_before_the_next_one():
    answers = [run("last_device_is_gone", "n300", "sp2").values for _ in range(3)]
    assert answers == [[{"gone": True}] * 2] * 3
