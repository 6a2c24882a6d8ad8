"""Two runs, or a torch module and its counterpart in TTNN, beside each other."""
