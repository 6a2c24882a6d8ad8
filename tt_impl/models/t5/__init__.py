"""Text encoders T5 and UMT5."""
