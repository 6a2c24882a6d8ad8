"""Qwen3 mixture-of-experts decoder in TTNN."""
