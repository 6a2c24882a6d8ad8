"""Options, markers and a fixture as suites of TTNN have them; nothing here knows that there is no hardware."""

from __future__ import annotations

import pytest


def pytest_addoption(parser):
    import ttnn

    parser.addoption("--arch", default=ttnn.get_arch_name(), choices=["wormhole_b0", "blackhole"])


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_grid(x, y): skip on devices with fewer cores")


def pytest_generate_tests(metafunc):
    """``arch_blackhole`` runs a test on that architecture only: elsewhere there is no value for it."""
    if "arch_blackhole" in metafunc.fixturenames:
        metafunc.parametrize("arch_blackhole", [True] if metafunc.config.getoption("--arch") == "blackhole" else [])


@pytest.fixture
def device(request, device_params):
    import ttnn

    before = ttnn.GetDefaultDevice()
    opened = ttnn.CreateDevice(device_id=0, **device_params)
    ttnn.SetDefaultDevice(opened)
    yield opened
    ttnn.SetDefaultDevice(before)
    ttnn.close_device(opened)


@pytest.fixture(autouse=True)
def enough_cores(request):
    marker = request.node.get_closest_marker("needs_grid")
    if marker:
        grid = request.getfixturevalue("device").compute_with_storage_grid_size()
        if grid.x < marker.args[0] or grid.y < marker.args[1]:
            pytest.skip(f"the device has {grid.x}x{grid.y} cores")


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    item.reports = [*getattr(item, "reports", []), outcome.get_result()]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item):
    yield
    assert [report.when for report in item.reports][:2] == ["setup", "call"] or item.reports[-1].when == "setup"
