"""Qwen-Image transformer, and Edit-2511's."""
