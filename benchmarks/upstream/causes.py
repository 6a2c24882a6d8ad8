"""Why cases of upstream's tests fail on the mock, in words: a table of patterns, the first that fits is the cause.

``who`` is ``ours`` (a rule, an option or a value is missing or wrong), ``theirs`` (the test does not fit the tree it
is in, or asserts what no program can know), or ``skew`` (the tree and the libraries installed here are of different
versions). A failure that no pattern fits counts as failed and is printed as unexplained; so does one that is only like
a known case, for the mock's own code may raise a ``TypeError`` of the same words.
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


_OURS = "refsim|tt_impl|parity|benchmarks"
_FACTORY = r"ttnn\._ttnn\.operations\.\w+\.(LayerNormMultiCore|LayerNormSharded|SliceTile)ProgramFactory"

_TABLE: tuple[tuple[str, str, str, Cause], ...] = (
    # pattern of the id, of the category, of the message; what takes a case out of the count names test and words, since
    # a mistake of the mock may raise the same kind of error
    ("clip", "^refused$", r"BinaryOpType::ADD with a DataType::UINT32 tensor cannot represent the scalar -1",
     _skew("ttnn 0.81.1 refuses this scalar for integers; the tree's did not")),
    ("", "^version$", rf"No module named '(?!({_OURS})\b)",
     Cause("skew", "a module that the wheel or this environment lacks", MODULE)),
    ("", "^version$", r"cannot import name '\w+' from '(models|tests)\.",
     Cause("theirs", "the test imports what its own tree no longer has", MODULE)),
    ("test_gelu_bw_main_ulp", "^version$", r"^ttnn\.gelu_bw\(\): incompatible function arguments.*approximate='none'",
     _skew("a signature that ttnn 0.81.1 does not have")),
    ("test_llama_prefill_ccl_ops.py::test_all_gather_async", "^version$",
     r"^ttnn\.experimental\.all_gather_async\(\): incompatible function arguments.*persistent_intermediate_buffer=",
     Cause("theirs", "the test names an argument that the tree's own operation does not have")),
    ("test_new_matmul_reduce_scatter", "^refused$",
     r"^TT_FATAL: reduce_scatter_minimal_async: the tiled intermediate must",
     _skew("ttnn 0.81.1 refuses this intermediate buffer by a check that the tree's lacks")),
    ("test_group_norm_DRAM", "^version$", r"^ttnn\.group_norm\(\): incompatible function arguments",
     _skew("a signature that ttnn 0.81.1 does not have")),
    ("test_paged_sdpa_decode_flexible_geometry", "^version$",
     r"^ttnn\.transformer\.paged_scaled_dot_product_attention_decode\(\): incompatible function arguments",
     _skew("a signature that ttnn 0.81.1 does not have")),
    ("test_tensor_creation_with_memory_config.*Tile with shape", "^version$",
     r"^__init__\(\): incompatible function arguments",
     _skew("a signature that ttnn 0.81.1 does not have")),
    ("", "^version$", r"^module 'ttnn\.(experimental' has no attribute 'gelu_bw"
     r"|transformer' has no attribute 'windowed_scaled_dot_product_attention"
     r"|database' has no attribute 'insert_stack_trace)'$", _skew("a name that ttnn 0.81.1 does not have")),
    ("/fused/parallel_sequential/", "^version$",
     rf"^('{_FACTORY}' object|type object '{_FACTORY}') has no attribute 'create_descriptor'$",
     _skew("an attribute that ttnn 0.81.1 does not have")),
    ("test_group_norm.py", "^version$", r"^'ttnn\._ttnn\.tensor\.Tensor' object has no attribute 'shard_spec'$",
     _skew("an attribute that ttnn 0.81.1 does not have")),
    ("test_qwen25vl", "^error$", r"^'Qwen2_5_VLConfig' object has no attribute 'hidden_act'$",
     _skew("transformers 5 renamed what the test reads")),
    ("test_qwen25vl", "^error$", r"^Qwen2_5_VLModel\.get_rope_index\(\) missing 1 required .*: 'mm_token_type_ids'$",
     _skew("transformers 5 asks for another argument")),
    (r"test_transformer_qwenimage.py::test_transformer\[", "^error$", r"^unhashable type: 'list'$",
     _skew("diffusers takes other arguments here")),
    (r"blocks/test_attention.py::test_attention_flux\[", "^error$",
     r"^'Attention' object has no attribute 'head_dim'$", _skew("diffusers renamed what the test builds")),
    ("encoders/clip/", "^error$", r"^TextEmbeddings\.forward\(\) takes 2 positional arguments but 3 were given$",
     Cause("theirs", "the test calls the tree's own module with an argument that it does not take")),
    (r"minimal_matmul_async.py::test_linear\[.*separate", "refused", r"Output tensor shape at dimension",
     Cause("theirs", "the test cuts rows along another axis than its buffer; the tree's ttnn has the same check")),
    ("test_vae_wan2_1.py::test_wan_conv3d", "assertion", r"Padding must be zero",
     Cause("theirs", "asserts zero padding after a convolution with bias whose model masks the padding before it")),
    (r"test_vae_wan2_1.py::test_wan_(en|de)coder3d\[.*True", "^error$",
     r"^'NoneType' object has no attribute 'dtype'$",
     Cause("theirs", "its outputs agree; then the test reads a place of the cache that the model never fills")),
    ("test_vae_sd35.py::test_sd35_vae_vae_decoder", "^assertion$", r"^VAE run time \S+ is greater than expected",
     Cause("theirs", "its picture agrees; then it asserts the seconds that a device takes, and there is none here")),
    (r"test_vae_wan2_1.py::test_wan_upblock\[.*upblock_1\]", "^error$",
     r"^incompatible shapes: \S+\(\[1, 192, 2, 360, 640\]\) != \S+\(\[1, 192, 3, 360, 640\]\)$",
     Cause("theirs", "two frames with an empty cache: the tree's module doubles the second, its reference none")),
    ("", "^environment$", r"^Cannot load model \S+: the model is not fully cached|^the weights of .* need a download"
     r"|couldn't connect to 'https://huggingface|trying to locate the file on the Hub",
     Cause("theirs", "weights or tokenizers to download", DOWNLOAD)),
    ("test_vae_ltx", "^refused$", r"conv3d: the static circular buffers need",
     _skew("ttnn 0.81.1 refuses this blocking of conv3d by a check that the tree's lacks")),
    ("/fused/parallel_sequential/", "^error$",
     r"^Unable to convert function return value to a Python type! The signature was matmul_select_program_factory\(",
     _skew("the tree composes program factories, one of which ttnn 0.81.1 does not bind to Python")),
    ("test_to_dtype|to_list", "^error$", r"^DataType.INT8$", _skew("a dtype that the tree's helpers lack")),
    ("test_full.py::test_full_nd_sharded_manual_sharding", "refused", r"must be tile .* sized",
     Cause("theirs", "a shard that is no multiple of a tile; the tree's ttnn has the same check")),
    ("per_core_allocation", "refused", r"requires AllocatorMode::HYBRID",
     Cause("ours", "an environment variable that the suite sets after the mock has asked ttnn for its devices")),
    ("/fused/parallel_sequential/", "^refused$", r"Fusion semaphore slots and bank metadata",
     _skew("the tree's fusion hands ttnn 0.81.1 one of two things that it wants both of")),
    (r"test_binary_int32.py::test_bitwise_right_shift\[.*UINT32", "^assertion$", r"^assert False",
     _skew("ttnn 0.81.1 documents a logical shift of uint32")),
    (r"test_fold_op.py::test_fold\[", "^assertion$", r"attribute 'shape' do not match",
     _skew("ttnn 0.81.1 gives the rows of fold in another shape than the tree's golden function")),
    (r"test_print_tensor.py::test_\w*print_options", "^assertion$", r"^assert 'ttnn\.Tensor\(",
     Cause("theirs", "random numbers of another torch, compared as text")),
    ("test_softmax_(sharded_)?stable.*BFLOAT8_B", "^assertion$", r"^Numeric metrics comparison failed",
     Cause("theirs", "compares with values from before their rounding to bfloat8_b, where largest ones tie")),
    ("test_transformer_attention_softmax_inplace_numeric_stability", "^assertion$", r"^0\.9[67]\d+$",
     Cause("ours", "rounding inside a kernel is not modelled: the golden function adds the mask in bfloat16")),
    ("test_batch_norm_compute_config|test_unary_logit", "^assertion$", "",
     Cause("ours", "rounding inside a kernel is not modelled")),
    (r"test_pre_allgather_layernorm\[fuse_residual=True.*BFLOAT8_B", "^assertion$",
     r"^Numeric metrics comparison failed: 2/3 .*ALLCLOSE FAILED.*PCC PASSED",
     Cause("ours", "rounding inside a kernel is not modelled: a sum in bfloat8_b, 0.070 off where 0.063 is allowed")),
    (r"/(base_functionality|data_movement)/.*(BFLOAT8_B|bf8)", "^assertion$", r"^Max ATOL Delta: 0\.03125,",
     Cause("theirs", "asks for less than ttnn's own conversion to bfloat8_b on the host gives: 0.025 beside a 4")),
    (r"test_unary_shrink_functions_bf8b_ttnn\[.*hardshrink", "^assertion$", r"^Max ATOL Delta: 36\.5,",
     Cause("theirs", "its golden function rounds the bound 36.49 to bfloat16, 36.5, a value of the input")),
    ("", "refused", r"targets node", Cause("ours", "the grid of cores is that of dispatch by rows")),
    ("/matmul/test_matmul.py", "^refused$", r"matmul does not support transposed in1 with tile width 16"
     r"|matmul fused bias does not support 32x16 narrow in1 tile",
     _skew("ttnn 0.81.1 refuses tiles of 16 columns that are transposed, or beside a bias")),
    ("test_group_norm_DRAM", "^version$", r"^module 'ttnn' has no attribute 'create_group_norm_reciprocals'$",
     _skew("a name that ttnn 0.81.1 does not have")),
    ("test_untilize_with_unpadding_sharded_multi_batch", "", r"^\[XPASS\(strict\)\] TT_FATAL: \"Can only write unb",
     _skew("the test expects a check that ttnn 0.81.1 no longer has")),
    (r"test_ccl_l1_small_semaphores\[.*l1_default", "^assertion$", "^DID NOT RAISE RuntimeError$",
     Cause("ours", "semaphores that a collective makes for its cached program take no memory on a mock mesh")),
    (r"test_matmul_column_wise_bfp_tilize_via_transpose_b\[.*BFLOAT4_B", "^assertion$", r"FROBENIUS FAILED.*PCC PASSED",
     Cause("ours", "the fidelity of a kernel is not modelled: an error of 0.1283 where 0.128 is allowed")),
    ("test_math.py::test_cbrt", "^assertion$", r"^Max ULP Delta: 2\.0 ",
     Cause("theirs", "its golden function raises to 1/3 rounded to bfloat16: 0.062 for the third root of 2 ** -12")),
    ("test_graph_report", "^assertion$", r"^ImageNet labels not found at models/sample_data/",
     Cause("theirs", "a file that is not in the tree", DOWNLOAD)),
    ("tt_dit", "^error$", r"^Cache path does not exist. Run \w+_caching first",
     Cause("theirs", "reads what another test leaves on a disk", DOWNLOAD)),
    ("/fused/parallel_sequential/", "^environment$", r"No such file or directory: 'ttnn/cpp/",
     Cause("theirs", "a file that is not in the tree", DOWNLOAD)),
    ("", "^rule$", "", Cause("ours", "an operation without a rule")),
    ("", "^option$", "", Cause("ours", "an option that a rule does not know")),
    ("", "^unseen$", "", Cause("ours", "a value that nobody saw being written")),
    ("", "^shadow$", "", Cause("ours", "a value that the mock cannot tell")),
    ("", "^caught$", "", Cause("ours", "the test expects an error, and the mock's own was one")),
    ("", "^timeout$", "", Cause("ours", "no end in the time of a case")),
    ("", "^crash$", "", Cause("ours", "ttnn ended the process on the mock")),
    ("", "^refused$", r"crashes ttnn on a mock mesh", Cause("ours", "a call that a mock mesh does not survive")),
)  # fmt: skip


def cause_of(case: str, category: str, message: str) -> Cause | None:
    """Return the first cause whose patterns fit a failing case, or None."""
    for in_id, in_category, in_message, cause in _TABLE:
        if re.search(in_id, case) and re.search(in_category, category) and re.search(in_message, message):
            return cause
    return None
