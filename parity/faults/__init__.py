"""Deliberate faults in either backend: a gate that passes one of them is not a gate."""
