"""The processes that play devices: how they start, get jobs, fail and end."""
