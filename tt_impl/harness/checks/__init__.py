"""What is wrong with a program, found without a reference."""
