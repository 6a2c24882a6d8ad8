"""Deliberate faults in either wing: a gate that passes one of them is not a gate."""
