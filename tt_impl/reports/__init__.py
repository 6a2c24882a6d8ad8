"""What ttnn says of a whole model without hardware: memory, operations, chunk sizes."""
