"""Cases of a user's own: a checkpoint folder with inputs, a text."""
