"""One program watched while it runs."""
