"""What device tensors hold, by buffer."""
