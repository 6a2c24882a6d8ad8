"""Wan's transformer (one expert of 2.2), text to video and image to video."""
