"""Wan2.2 text-to-video transformer (one expert)."""
