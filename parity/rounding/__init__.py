"""What a device's rounding does to a model: predicted, judged beside a measured PCC, and beside a device's own record.

    subjects --> a model with inputs that can be run with any numerics --> predict (choices, layers, blocks, time)
                                                                       --> verdict (a PCC and its distribution)
                                                                       --> drift (latents, step by step)
    records of a device (PCC logs, profiler CSVs) --> measured --> columns beside the predicted ones

The exact run in fp32 on the same ranks is the judge of all of it.
"""
