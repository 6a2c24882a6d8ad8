"""Predictions for people: reports, plots, traces for other tools."""
