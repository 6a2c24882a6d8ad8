"""How often an explanation names the right place and the right fault: the work behind ``parity/explain/signatures``.

settings     on which cases a fault is run, for its signatures and to judge them
signatures   makes the stored signatures, and judges them on faults drawn by seed
right_place  whether a place is right, by the same program without the fault
"""
