"""The events of a program."""
