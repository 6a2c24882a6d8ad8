"""Decoder of Wan's video autoencoder (Wan2.1 VAE, which Wan2.2-T2V uses)."""
