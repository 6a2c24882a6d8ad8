"""Mochi 1 transformer."""
