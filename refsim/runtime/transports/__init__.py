"""How bytes come from one rank to another."""
