"""The commands of parity, a module a command; what is heavy is imported when one runs."""
