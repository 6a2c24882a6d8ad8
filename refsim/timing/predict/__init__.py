"""Seconds and bytes of a whole model on a mesh."""
