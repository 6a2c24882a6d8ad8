"""Parallel schemes of the device backend; the files are named as their counterparts in ``refsim.parallel``."""
