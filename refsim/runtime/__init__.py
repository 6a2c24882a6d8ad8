"""What a rank stands on: transport, device buffers, semaphores, trace, and the pool of rank processes."""
