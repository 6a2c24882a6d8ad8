"""The machine that is not there: cluster descriptor, environment, compiler."""
