"""Stable Diffusion 3.5 transformer (MMDiT), medium and large."""
