"""Published TTNN programs on the mock, as they are: which start, what they compute, what they take.

    published repositories --refsim ttnn run--> verdict, PCC, seconds, memory --> reports/programs.md

Nothing of them is in this project: environment variables name checkouts. Programs that need weights get small random
ones (:mod:`benchmarks.programs.checkpoints`), and are compared with the library that they mirror by the scripts in
``drive``.
"""
