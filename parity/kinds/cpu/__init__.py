"""Kinds of cases that refsim's ranks compute and code of others judges."""
