"""Measurements, and the parameters fitted to them; nothing here is imported to predict."""
