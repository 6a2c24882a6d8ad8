"""Runs cases: one, several processes of them, a suite."""
