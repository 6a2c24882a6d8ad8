"""``python -m refsim.torchrun``: torchrun that stays on this host, see :mod:`refsim.base.torchrun`."""

from refsim.base.torchrun import is_main, main, under_torchrun

__all__ = ["is_main", "main", "under_torchrun"]

if __name__ == "__main__":
    main()
