"""What serves anyone's TTNN program on a mock mesh: the pytest plugin, the runner, and what they say about a program.

``tt_impl.mock`` makes the mesh and the values; nothing there knows of this package. Importing it imports no ``ttnn``.
"""
