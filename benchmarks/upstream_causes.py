"""Why cases of upstream's tests fail on the mock, in words: a table of patterns, the first that fits is the cause.

``who`` is ``ours`` (a rule, an option or a value is missing or wrong), ``theirs`` (the test does not fit the tree it
is in, or asserts what no program can know), or ``skew`` (the tree and the libraries installed here are of different
versions; the message proves it). A failure that no pattern fits is printed as unexplained.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SKEW, MODULE, DOWNLOAD = "skew", "module", "download"


@dataclass(frozen=True)
class Cause:
    """A cause: whose it is, what it is, and the class of cases left out of the count it belongs to, if any."""

    who: str
    words: str
    left_out: str = ""


def _skew(words: str) -> Cause:
    return Cause("skew", words, SKEW)


_TABLE: tuple[tuple[str, str, str, Cause], ...] = (
    # pattern of the id, of the category, of the message
    ("", "", r"cannot represent the scalar", _skew("ttnn 0.81.1 refuses this scalar for integers; the tree's did not")),
    ("", "", r"No module named", Cause("skew", "a module that the wheel or this environment lacks", MODULE)),
    ("", "", r"cannot import name .* from 'ttnn", Cause("skew", "a name that the wheel's modules lack", MODULE)),
    ("", "", r"cannot import name", Cause("theirs", "the test imports what its own tree no longer has", MODULE)),
    ("", "", r"unexpected keyword argument", _skew("an argument that the installed version does not have")),
    ("", "", r"incompatible (function|constructor) arguments", _skew("a signature that ttnn 0.81.1 does not have")),
    ("", "", r"module '?ttnn\S* has no attribute", _skew("a name that ttnn 0.81.1 does not have")),
    ("", "", r"'(ttnn|_ttnn)\S*' object has no attribute", _skew("an attribute that ttnn 0.81.1 does not have")),
    ("tt_dit", "", r"'Qwen\w+' object has no attribute", _skew("transformers 5 renamed what the test reads")),
    ("qwen", "", r"Qwen\S* missing \d required positional argument", _skew("transformers 5 asks for another argument")),
    ("qwenimage", "error", r"unhashable type: 'list'", _skew("diffusers takes other arguments here")),
    ("tt_dit", "", r"'Attention' object has no attribute 'head_dim'", _skew("diffusers renamed what the test builds")),
    ("clip", "", r"takes \d positional arguments but \d were given",
     Cause("theirs", "the test calls the tree's own module with an argument that it does not take")),
    (r"minimal_matmul_async.py::test_linear\[.*separate", "refused", r"Output tensor shape at dimension",
     Cause("theirs", "the test cuts rows along another axis than its buffer; the tree's ttnn has the same check")),
    ("test_vae_wan2_1.py::test_wan_conv3d", "assertion", r"Padding must be zero",
     Cause("theirs", "asserts zero padding after a convolution with bias whose model masks the padding before it")),
    ("", "", r"Cannot load model|need a download|couldn't connect|offline|LocalEntryNotFound|file on the Hub",
     Cause("theirs", "weights or tokenizers to download", DOWNLOAD)),
    ("", "refused", r"conv3d: the static circular buffers need",
     _skew("ttnn 0.81.1 refuses this blocking of conv3d by a check that the tree's lacks")),
    ("", "error", r"Unable to convert function return value to a Python type",
     _skew("the tree composes program factories, one of which ttnn 0.81.1 does not bind to Python")),
    ("test_to_dtype|to_list", "error", r"^DataType.INT8$", _skew("a dtype that the tree's helpers lack")),
    ("test_full.py.*shard_shape=.4, 4, 4.", "refused", r"must be tile .* sized",
     Cause("theirs", "a shard that is no multiple of a tile; the tree's ttnn has the same check")),
    ("per_core_allocation", "refused", r"requires AllocatorMode::HYBRID",
     Cause("ours", "an environment variable that the suite sets after the mock has asked ttnn for its devices")),
    ("", "refused", r"Fusion semaphore slots and bank metadata",
     _skew("the tree's fusion hands ttnn 0.81.1 one of two things that it wants both of")),
    ("", "version", r"type object 'ttnn\S* has no attribute", _skew("an attribute that ttnn 0.81.1 does not have")),
    ("UINT32.*right_shift", "assertion", "", _skew("ttnn 0.81.1 documents a logical shift of uint32")),
    ("test_fold\\[", "assertion", r"attribute 'shape' do not match",
     _skew("ttnn 0.81.1 gives the rows of fold in another shape than the tree's golden function")),
    ("print_options", "assertion", "", Cause("theirs", "random numbers of another torch, compared as text")),
    ("softmax_stable.*BFLOAT8_B", "assertion", "",
     Cause("theirs", "compares with values from before their rounding to bfloat8_b, where largest ones tie")),
    ("batch_norm_compute_config|logit", "assertion", "", Cause("ours", "rounding inside a kernel is not modelled")),
    ("", "refused", r"targets node", Cause("ours", "the grid of cores is that of dispatch by rows")),
    ("matmul", "refused", r"does not support transposed in1 with tile width 16",
     _skew("ttnn 0.81.1 refuses transposed tiles of 16 columns")),
    ("", "assertion", r"labels not found", Cause("theirs", "a file that is not in the tree", DOWNLOAD)),
    ("", "error", r"Cache path does not exist", Cause("theirs", "reads what another test leaves on a disk", DOWNLOAD)),
    ("", "environment", r"No such file|not found",
     Cause("theirs", "a file that is not in the tree", DOWNLOAD)),
    ("", "rule", "", Cause("ours", "an operation without a rule")),
    ("", "option", "", Cause("ours", "an option that a rule does not know")),
    ("", "unseen", "", Cause("ours", "a value that nobody saw being written")),
    ("", "caught", "", Cause("ours", "the test expects an error, and the mock's own was one")),
    ("", "timeout", "", Cause("ours", "no end in the time of a case")),
    ("", "crash", "", Cause("ours", "ttnn ended the process on the mock")),
    ("", "refused", r"crashes ttnn on a mock mesh", Cause("ours", "a call that a mock mesh does not survive")),
)  # fmt: skip


def cause_of(case: str, category: str, message: str) -> Cause | None:
    """The first cause whose patterns fit a failing case, or None."""
    for in_id, in_category, in_message, cause in _TABLE:
        if re.search(in_id, case) and re.search(in_category, category) and re.search(in_message, message):
            return cause
    return None
