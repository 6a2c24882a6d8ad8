"""Parity: judge the simulator against code it did not write, and keep every judgement as a record.

cases.py       what a case is, and its id      suites/     which cases there are, a module a family of models
kinds/         what a kind of case runs, measures and allows, a module a kind
inputs.py      seeded tensors                  checkpoints.py, pipelines.py, store.py   random weights, in folders
formulas.py    attention in float64            oracles/    what a class of diffusers or transformers wants
metrics.py     how far apart                   thresholds.py   shared bounds, floors, the judge
cpu_runner.py, ttnn_runner.py   run cases of any kind on a family of backends
gate.py        a suite                         records.py, report.py, compare.py   json, JUnit, markdown; two runs
cli.py         ``refsim parity list | run | compare | calibrate``
"""
