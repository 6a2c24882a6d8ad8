"""What happens when ttnn is called on a mock mesh."""
