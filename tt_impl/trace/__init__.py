"""What a program asks of ttnn: calls intercepted, counted, and read off ttnn's own graph."""
