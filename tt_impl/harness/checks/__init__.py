"""What is wrong with a program, found without a reference: collectives, memory, values that no device should have."""

KINDS = {
    "ring-without-link": "a ring over devices whose last has no link back to the first",
    "too-many-links": "more links than neighbours have",
    "not-neighbours": "devices that follow each other along an axis have no link (note)",
    "small-buffer": "a persistent buffer cannot hold what the collective writes",
    "semaphore-twice": "one semaphore given twice to one collective",
    "semaphore-in-flight": "a semaphore is signalled while a device that lags may still wait for it",
    "buffer-in-use": "other devices write memory while one that lags may use it (a note: first fill, ring attention)",
    "stale-read": "a collective's result is read after a later one has overwritten its buffer",
    "never-written": "memory is read that was allocated and never written (a note where the host reads it)",
    "freed": "a tensor is used after it was deallocated (a note where it is deallocated again)",
    "uneven-replicas": "a tensor is read as replicated, but devices hold different values",
    "partial-sum": "sums over part of a cut dimension are used for whole ones (a note where the host reads all parts)",
    "local-statistics": "a distributed norm uses statistics of one device's columns",
    "buffer-twice": "one buffer is given twice to one collective",
    "bias-summed": "a bias is added on every device to sums that are added up afterwards",
    "unused-result": "nothing reads the result of a collective (note)",
    "submeshes-differ": "submeshes that start with the same collectives go on with others (note)",
    "not-finite": "an operation makes NaN of inputs without (a note: infinity of finite ones)",
    "tile-padding": "an operation takes what fills its last tiles up for data (a note where nobody knows what does)",
    "kernel-resources": "a TT-Lang kernel takes more than a node has (a note where the mock chose its grid)",
    "cached-program": "a cached program is run that was built for other arguments: ttnn's key lacks one",
    "trace-overwrites-input": "a trace writes what its next replay reads (a note: caches, and results that grow)",
    "lost-under-trace": "a trace writes memory that was given to others, or reads memory that was given back",
    "trace-region": "the trace region is too small for the programs of the traces that live (a note: it may be)",
    "refused": "ttnn, or the mock in its place, refuses a call, and the program goes on",
}
"""Every kind of finding, and what it means."""

ERROR = "error"
NOTE = "note"
"""Severities: what goes wrong on devices, and what may."""
