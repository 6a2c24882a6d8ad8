"""What stands in for hardware: cluster descriptors, a toolchain stand-in, golden values and extra checks."""
