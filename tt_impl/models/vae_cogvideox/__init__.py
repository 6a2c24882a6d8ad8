"""Decoder of CogVideoX's video autoencoder."""
