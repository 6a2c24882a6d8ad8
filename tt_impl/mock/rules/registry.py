"""How a shadow rule is written and found.

A rule has the parameters of the operation it shadows, by name and order, except that arguments which steer only
how a device computes (``NEUTRAL``) are taken away before. An argument a rule does not have is an error that names
the operation: a rule never ignores something that could change the result.

* ``@per_device(names)``: torch tensors of one device in, those of one device out; called once for devices that
  share all of them (replicas do, from the host on). With ``with_call`` the ``Call`` comes before them.
* ``@across(names)``: all devices' ``Shards`` in, one list of torch tensors (or a tuple of lists) out. Devices that
  end with the same value get the same torch tensor, so that what follows is computed once for them: ``Call.each``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import ttnn

from tt_impl.mock.storage.errors import RefusedOption, ShadowError
from tt_impl.mock.storage.not_finite import UNWRITTEN
from tt_impl.mock.storage.values import Shards, Store, ranks_of
from tt_impl.trace.intercept import COMPLEX, Arguments

_NEUTRAL_BECAUSE = {
    "it says where the result lies": """
        memory_config intermediate_memory_config device mesh_device""",
    "it says what the result is stored as, which is known from the result; what does not fit its dtype is an error": """
        dtype output_dtype layout output_layout tile output_tile""",
    "it is overwritten: the result shares its buffer; one that the operation did not return is forgotten": """
        output_tensor output_tensors optional_output_tensor optional_tensor preallocated_output out inplace input_grad
        input_a_grad input_b_grad other_grad""",
    "it chooses cores, blocks and queues": """
        program_config config core_grid queue_id cq_id sub_core_grids subdevice_id sub_device_id use_multicore
        use_low_perf use_2d_core_grid num_out_blocks slice_config force_transpose reshape_tile_mode
        global_cb prefetcher_pipes""",
    "it changes rounding only: fidelity, accumulation in float32, approximations of the same function": """
        compute_kernel_config compute_config math_fidelity fast_and_approximate_mode use_welford""",
    "it fills tiles beyond the shape": "skip_padding_fill",
    "it is how devices exchange what the rule says; a persistent buffer that no rule writes is forgotten": """
        num_links num_preferred_links topology chunks_per_sync num_workers_per_link num_buffers_per_channel
        multi_device_global_semaphore barrier_semaphore use_l1_small_for_semaphores use_optimal_ccl_for_llama
        use_broadcast persistent_output_buffer persistent_output_buffers persistent_output_tensor
        persistent_output_buffer_k persistent_output_buffer_v persistent_output_buffer_joint_k
        persistent_output_buffer_joint_v persistent_weight_buffer ccl_core_grid_offset use_column_major_ccl""",
    "its rule looks up what it says of values": "conv_config",
}
NEUTRAL = frozenset(name for names in _NEUTRAL_BECAUSE.values() for name in names.split())
"""Arguments without influence on the values, their rounding (known from the output) aside.

A ``program_config`` has one: its activation, see :func:`for_rule`. What a ``conv_config`` and a ``config`` of conv3d
say of values, the rules of convolutions look up themselves.
"""

TILE = 32
"""Rows and columns of a tile; ttnn lays weights in row-major layout out in sticks of as many."""

_NEUTRAL_IN = {
    # it fills tiles beyond the shape
    **dict.fromkeys("reshape Tensor.reshape permute transpose to_layout fold".split(), "pad_value"),
    # the rule of convolutions looks up what is asked for besides the result
    **dict.fromkeys(("conv1d", "conv2d"), "return_output_dim return_weights_and_bias"),
    "conv_transpose2d": "return_output_dim return_weights_and_bias dram_slice_config",
    # it chooses cores, blocks and how exactly a device adds
    **dict.fromkeys(
        ("experimental.attn_matmul", "experimental.attn_matmul_from_cache", "experimental.group_attn_matmul"),
        "compute_with_storage_grid_size",
    ),
    "cumsum": "disable_compensated_sum",
    "experimental.strided_all_gather_async": "mm_cores_y mm_block_ht mm_block_wt",
    "experimental.strided_reduce_scatter_async": """
        mm_cores_y mm_block_ht mm_block_wt mm_N_full_block_wt chunk_width_in_mm_blocks""",
    # it says where results lie, or how devices exchange them
    **dict.fromkeys(
        """batch_norm experimental.broadcast_to experimental.deepseek_prefill.routed_expert_ffn moreh_abs_pow
        moreh_arange moreh_bmm moreh_cumsum moreh_dot moreh_getitem moreh_linear moreh_matmul moreh_mean moreh_norm
        moreh_sum""".split(),
        "output",
    ),
    **dict.fromkeys(
        ("moreh_softmax_backward", "moreh_softmin_backward", "moreh_logsoftmax_backward"), "input_grad_tensor strategy"
    ),
    **dict.fromkeys(("moreh_softmax", "moreh_softmin", "moreh_logsoftmax"), "strategy"),
    **dict.fromkeys(("moreh_nll_loss_backward", "moreh_nll_loss_unreduced_backward"), "input_grad_tensor"),
    "moreh_nll_loss": "divisor_tensor",
    "moreh_bmm_backward": "mat2_grad input_grad_memory_config mat2_grad_memory_config",
    "moreh_linear_backward": """
        weight_grad bias_grad input_grad_memory_config weight_grad_memory_config bias_grad_memory_config""",
    "moreh_layer_norm": "output mean rstd",
    "moreh_group_norm": "output mean rstd mean_memory_config rstd_memory_config",
    **dict.fromkeys(
        ("moreh_layer_norm_backward", "moreh_group_norm_backward"),
        """gamma_grad beta_grad input_grad_memory_config gamma_grad_memory_config beta_grad_memory_config""",
    ),
    "moreh_sgd": "param_out momentum_buffer_out param_out_memory_config momentum_buffer_out_memory_config",
    **dict.fromkeys(("moreh_adam", "moreh_adamw"), "param_out exp_avg_out exp_avg_sq_out max_exp_avg_sq_out"),
    "moreh_clip_grad_norm": "total_norm",
    "experimental.neighbor_pad_async": "neighbor_semaphore",
    "experimental.slice_reshard_async": "final_semaphore",
    "interleaved_to_sharded_partial": "shard_scheme shard_orientation",
    "typecast": "input_dtype",
    "moe_expert_token_remap": "optional_output_mapping_tensor optional_output_reduced_tensor",
    "experimental.all_gather_matmul_async": "all_gather_core_grid_offset memory_config_ag memory_config_mm",
    "experimental.all_gather_minimal_matmul_async": "fsdp_topology fsdp_multi_device_global_semaphore",
    "experimental.deepseek_grouped_gate": "weights_layout",
    **dict.fromkeys(
        """experimental.deepseek_moe_fast_reduce_nc experimental.deepseek_moe_fast_reduce_nc_fused
        experimental.deepseek_moe_post_combine_tilize experimental.deepseek_moe_reduce_scatter
        experimental.deepseek_prefill.post_combine_reduce""".split(),
        "output_memory_config",
    ),
    "experimental.all_to_all_dispatch_metadata": """
        drain_sync_tilizer_core worker_mode dispatch_algorithm worker_core_range_set mux_core_range_set
        cross_device_semaphore""",
    "experimental.deepseek_prefill.dispatch": "num_workers_per_sender",
    "experimental.llama_rs_matmul": "memory_config_rs memory_config_mm use_noc1_only",
    "experimental.deepseek_prefill.moe_grouped_topk": "weights_layout",
    "experimental.matmul_reduce_scatter_async": """
        memory_config_mm memory_config_rs reduce_scatter_core_grid_offset""",
    "experimental.all_reduce_create_qkv_heads": "final_memory_config use_noc1_only",
    "experimental.llama_reduce_scatter": "use_noc1_only",
    "experimental.llama_rs_create_heads": "qkv_memory_config use_noc1_only use_optimal_ccl_for_llama",
    # in L1 the products of the strided one are not whole, but then it needs mm_window_blocks, too
    "experimental.minimal_matmul_strided_reduce_scatter_async": """
        memory_config_mm rs_output_mem_config rs_intermediate_mem_config chunk_width_in_mm_blocks
        using_persistent_buffers reduce_scatter_core_grid_offset""",
}
NEUTRAL_IN = {f"ttnn.{name}": frozenset(keys.split()) for name, keys in _NEUTRAL_IN.items()}
"""Arguments that are neutral in some operations only."""


REQUIRED: Any = None
"""Stands for the default of an argument that ttnn wants in every call, behind one that rules are called without."""

OUTPUTS = (
    "output_tensor output_tensors optional_output_tensor optional_tensor preallocated_output out output input_grad "
    "input_a_grad input_b_grad other_grad"
).split()
"""Keywords that name tensors to write into."""

BUFFERS = tuple(name for names in _NEUTRAL_BECAUSE.values() for name in names.split() if name.startswith("persistent_"))
"""Keywords that name tensors in which devices exchange values; some operations return them."""

VIEWS = frozenset(
    "ttnn." + name
    for name in """
    Tensor.reshape broadcast_to chunk concat expand experimental.view flatten interleaved_to_sharded permute reallocate
    repeat reshape reshard sharded_to_interleaved slice split squeeze to_layout to_memory_config transpose unsqueeze
    unsqueeze_to_4D view
    """.split()
)
"""Operations that move values. If their result shares the buffer of an input, it is a view: nothing was moved."""


ALSO_CALLED: dict[str, dict[str, str]] = {
    "ttnn.addcdiv_bw": {"alpha": "value"},
    "ttnn.addcmul_bw": {"alpha": "value"},
    "ttnn.assign": {"input_a": "input_tensor", "input_b": "_output"},
    "ttnn.mac": {"value1": "input_tensor_b", "value2": "input_tensor_c"},
    "ttnn.prelu": {"input_tensor_a": "input_tensor"},
    "ttnn.threshold_bw": {"min": "threshold", "max": "value"},
}
"""What overloads of an operation call an argument by keyword, and what its rule calls it."""


def for_rule(kwargs: dict[str, Any], name: str = "") -> dict[str, Any]:
    """Return the keyword arguments that the rule of operation ``name`` gets.

    ``program_activation`` is what a program config says to apply at the end.
    """
    also = ALSO_CALLED.get(name, {})
    for_values = {also.get(key, key): value for key, value in kwargs.items() if not neutral(key, name)}
    for config in ("program_config", "config"):
        activation = getattr(kwargs.get(config), "fused_activation", None)
        if activation is not None:
            for_values["program_activation"] = activation
    return for_values


def neutral(key: str, name: str) -> bool:
    """Tell whether keyword ``key`` of operation ``name`` has no influence on its values."""
    return key in NEUTRAL or key in NEUTRAL_IN.get(name, ())


@dataclass
class Call(Arguments):
    """What a rule may look at besides its arguments."""

    outputs: list[ttnn.Tensor]
    store: Store
    evaluations: int = 0
    padding: float | None = None
    """What fills the tiles of the outputs beyond their shapes, where the rule sets it."""

    def each(self, function: Callable[..., Any], *inputs: Any, rounds_once: bool = False) -> list[Any]:
        """Return ``function`` of every device's part of ``inputs``, computed once for those whose parts are one object.

        An input is a ``Shards`` or a list with one value per device; anything else is the same on all devices.
        A function that ``rounds_once``, as torch does in one addition or product of bfloat16, gets tensors as they
        are stored where all are stored as bfloat16 and the result is: the same values without a detour over float32.
        """
        spread = [value for value in inputs if isinstance(value, Shards | list)]
        narrow = rounds_once and self.in_bfloat16(spread)

        def on_one(device: int) -> Any:
            parts = (value[device] if isinstance(value, list) else _part(value, device, narrow) for value in inputs)
            return function(*parts)

        return self.once(spread, on_one)

    def once(self, inputs: Sequence[Shards | list], compute: Callable[[int], Any]) -> list[Any]:
        """Call ``compute(device)`` for every device, once for those whose parts of ``inputs`` are one object."""
        keys = list(zip(*map(identities, inputs), strict=True)) if inputs else [()] * len(ranks_of(self.outputs[0]))
        known: dict[tuple, Any] = {}
        for device, key in enumerate(keys):
            if key not in known:
                known[key] = compute(device)
        self.evaluations += len(known)
        return [known[key] for key in keys]

    def in_bfloat16(self, inputs: Sequence[Any]) -> bool:
        """Tell whether ``inputs`` are stored as bfloat16 (block floats are, too) and the first output is bfloat16."""
        stored = (tensor for value in inputs for tensor in (value.stored[:1] if isinstance(value, Shards) else value))
        return self.outputs[0].dtype == ttnn.bfloat16 and all(tensor.dtype == torch.bfloat16 for tensor in stored)

    def unsupported(self, what: str) -> ShadowError:
        return RefusedOption(self.name, what)

    def check_named(self, keywords: dict[str, Any], known: Collection[str]) -> None:
        """Refuse keywords that are not among ``known``, those that change nothing."""
        if unknown := sorted(keywords.keys() - set(known)):
            raise self.unsupported(" and ".join(unknown))

    def leave_to_nobody(self, tensor: ttnn.Tensor, devices: int) -> None:
        """Note that the operation leaves values in ``tensor`` that nobody may read."""
        self.store.write(tensor, [nobodys(tensor.shape)] * devices, self.name)

    def written(self, argument: str, shards: list[torch.Tensor]) -> None:
        """Note that the operation also wrote ``shards`` into the tensor passed as keyword ``argument``, if one was."""
        if self.kwargs.get(argument) is not None:
            self.store.write(self.kwargs[argument], shards, self.name)


Rule = Callable[[Call, tuple, dict[str, Any]], list[list[torch.Tensor]]]
RULES: dict[str, Rule] = {}
SUMS_BFLOAT16 = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
"""Whether this processor multiplies bfloat16 and adds the products in float32."""


def per_device(*names: str, as_stored: bool = False, rounds_once: bool = False, with_call: bool = False) -> Callable:
    """Register a function of torch tensors for operations ``ttnn.<name>``.

    With ``as_stored`` floating point comes as bfloat16 where it is kept as such: for functions that only move values.
    One that ``rounds_once`` is given bfloat16 as in ``Call.each``. One ``with_call`` gets the :class:`Call` first.
    """

    def register(function: Callable) -> Callable:
        def rule(call: Call, args: tuple, kwargs: dict[str, Any]) -> list[list[torch.Tensor]]:
            shards = [value for value in leaves((args, kwargs)) if isinstance(value, Shards)]
            narrow = as_stored or (rounds_once and call.in_bfloat16(shards))

            def on_one(device: int) -> Sequence[torch.Tensor]:
                positional, named = mapped(lambda value: _part(value, device, narrow), (args, kwargs))
                result = function(call, *positional, **named) if with_call else function(*positional, **named)
                return result if isinstance(result, list | tuple) else [result]

            return list(columns(call.once(shards, on_one)))

        return _register(names, rule, function)

    return register


def table(functions: dict[str, Callable], as_stored: bool = False) -> None:
    """Register a function of torch tensors for each operation, by whose name errors call it."""
    for name, function in functions.items():
        function.__qualname__ = name.rpartition(".")[2]
        per_device(name, as_stored=as_stored)(function)


def across(*names: str) -> Callable:
    """Register a function ``(call, *arguments with Shards)`` for operations ``ttnn.<name>``."""

    def register(function: Callable) -> Callable:
        def rule(call: Call, args: tuple, kwargs: dict[str, Any]) -> list[list[torch.Tensor]]:
            result = function(call, *args, **kwargs)
            return list(result) if isinstance(result, tuple) else [result]

        return _register(names, rule, function)

    return register


def columns(results: list[Any]) -> tuple[list[Any], ...]:
    """Return one list per output, of one sequence per device."""
    return tuple(list(column) for column in zip(*results, strict=True))


def _register(names: tuple[str, ...], rule: Rule, function: Callable) -> Callable:
    rule.__wrapped__ = function  # type: ignore[attr-defined]  # whose signature is the rule's
    for name in names:
        if f"ttnn.{name}" in RULES:
            raise ValueError(f"two shadow rules for ttnn.{name}.")
        RULES[f"ttnn.{name}"] = rule
    return function


def nobodys(shape: Iterable[int]) -> torch.Tensor:
    """Fill a tensor with what nobody may read: not a number."""
    return torch.full(tuple(shape), UNWRITTEN)


def identities(value: Shards | list) -> list[int]:
    """Return a number for each device, the same for two devices that hold one object."""
    return list(map(id, value.stored if isinstance(value, Shards) else value))


def _part(value: Any, device: int, as_stored: bool) -> Any:
    """Return the tensor of one device for ``Shards``; anything else is the same on all devices."""
    if not isinstance(value, Shards):
        return value
    return value.as_stored(device) if as_stored else value[device]


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return nested lists, tuples and dicts with ``function`` of everything in them; a complex tensor is its parts."""
    if isinstance(value, COMPLEX):
        value = [value.real, value.imag]
    if isinstance(value, list | tuple):
        return type(value)(mapped(function, item) for item in value)
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    return function(value)


def leaves(value: Any) -> list[Any]:
    """List everything in nested lists, tuples and dicts, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]
