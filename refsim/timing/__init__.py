"""Predicted time and memory: a model read as device operations, their cost, and their replay on a mesh."""
