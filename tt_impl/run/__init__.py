"""Opens a mesh on mock, simulator or device, and runs a program there in a process of its own."""
