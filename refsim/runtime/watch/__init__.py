"""What a run says of itself: activities, event trace, hazards, observed tensors."""
