"""Programs that exist only to be judged, or counted beside ours."""
