"""Tests of anyone run on a mock mesh: selection, processes, verdicts, summary."""
