"""How far an answer is from its reference, what is allowed, and the records of both."""
