"""Flux.1 transformer, dev (with a guidance embedding) and schnell."""
