"""Deliberate faults in the device backend, a module an area."""
