"""Parity: judge the simulator against code it did not write, and keep every judgement as a record.

cases.py  what is run          suites.py      the registry     selection.py the -k expressions
inputs.py seeded tensors       checkpoints.py random weights   oracles.py   the answers to compare with
metrics.py how far apart       thresholds.py  how far is allowed, and why
runners.py one case            gate.py        a suite          report.py    json, JUnit, markdown
cli.py    ``refsim parity list | run``
"""
