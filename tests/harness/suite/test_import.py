"""A file that needs what is not installed."""

import a_package_that_is_not_there  # noqa: F401


def test_never():
    pass
