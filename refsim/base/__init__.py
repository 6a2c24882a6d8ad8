"""What everything stands on: errors, meshes, configurations, options, processes; no torch."""
