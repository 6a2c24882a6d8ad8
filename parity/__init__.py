"""Parity: judge the simulator against code it did not write, and keep every judgement as a record.

A room imports those above it, never those below:

cases/      what a case is and its id, which cases there are, random checkpoints, and the oracles that judge them
measure/    how far two answers are apart, thresholds, and the records of what was judged
explain/    where a wrong answer is wrong, and which known fault looks alike
kinds/      what a kind of case runs, measures and allows, a module a kind
report/     json, JUnit, markdown and HTML of records; two runs beside each other; a history of runs
run/        one case, its workers, a suite
user/       a user's own folder or text, judged as any case
policies/   how a ring may reuse its buffers, model-checked
faults/     deliberate mistakes in either backend, which the cases have to find
mutation/   small changes of the source, which the cases have to find
cli/        ``refsim parity``, ``faults``, ``mutate``, ``history`` and ``schedules``
"""
