"""Qwen3 mixture-of-experts decoder (Qwen3-30B-A3B), tensor-parallel, with a cache of keys and values."""
