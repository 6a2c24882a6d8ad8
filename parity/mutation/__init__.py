"""Mutation testing: small changes of the source, each run by the cases that execute it; what passes is a survivor."""
