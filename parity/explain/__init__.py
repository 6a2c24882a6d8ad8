"""Why a case failed: where the first wrong tensor is, what the error looks like, and which known fault looks alike.

places       what a finder says: a place in words and numbers, errors by device, and features
attention    attention alone: rank, heads, rows, and the ring step whose keys weigh wrong
layered      a transformer: the first wrong tensor in program order, from the taps of every rank
pictures     a decoder: rows and columns of the picture
decoding     generation of text: prompt, round, and what went wrong there first
tokens       any other answer of tokens
causes       which faults of the corpus look alike, how likely each is; see :mod:`parity.faults.recognition`
"""
