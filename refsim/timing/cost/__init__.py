"""What one operation costs on one device, and a collective on its links."""
