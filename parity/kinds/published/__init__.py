"""Kinds of cases about what is known of a model without its weights."""
