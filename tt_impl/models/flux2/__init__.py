"""The FLUX.2 transformer in TTNN."""
