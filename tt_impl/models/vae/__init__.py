"""Decoder of the image autoencoders of Stable Diffusion 3.5 and Flux.1."""
