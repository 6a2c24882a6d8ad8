"""Which lines of the product each parity case executes, in the launcher and in every process it starts."""
