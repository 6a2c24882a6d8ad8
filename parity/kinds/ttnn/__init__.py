"""Kinds of cases that ``tt_impl`` computes and refsim judges."""
