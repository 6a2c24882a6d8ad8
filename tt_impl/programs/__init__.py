"""Programs that exist only to be judged."""
