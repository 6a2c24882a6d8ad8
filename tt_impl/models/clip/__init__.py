"""CLIP text encoders, with a projection and without."""
