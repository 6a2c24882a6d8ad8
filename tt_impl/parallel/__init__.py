"""Parallel schemes of the device wing; the files are named as their counterparts in ``refsim.parallel``."""
