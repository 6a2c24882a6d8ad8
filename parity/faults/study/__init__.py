"""How often an explanation names the right place and the right fault: the study behind ``parity/explain/signatures``.

settings     on which cases a fault is run, for its signatures and to judge them
signatures   makes the stored signatures, and judges them on faults drawn by seed
truth        whether a place is right, by the same program without the fault
"""
