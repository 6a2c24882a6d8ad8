"""Models, programs and profiler files read as records of operations."""
