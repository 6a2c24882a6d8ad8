"""Kinds of cases that are right when a mistake is refused in one sentence."""
