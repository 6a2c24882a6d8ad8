"""Decoder of Mochi 1's video autoencoder."""
