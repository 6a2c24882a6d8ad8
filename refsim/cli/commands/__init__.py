"""The commands of ``refsim``, a module each."""
