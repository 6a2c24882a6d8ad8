"""The image decoder of FLUX.2."""
