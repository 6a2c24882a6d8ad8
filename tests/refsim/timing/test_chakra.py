"""Chakra traces: read back by protobuf with the published schema; dependencies, partners and seconds hold."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from refsim.base.config import DiTParallelConfig, parse_parallel
from refsim.base.mesh import MeshSpec, Topology, get_mesh
from refsim.base.options import RunOptions
from refsim.models.registry import published
from refsim.timing.predict import estimate as estimates
from refsim.timing.predict.estimate import Estimate
from refsim.timing.read.reading import read_published
from refsim.timing.report import chakra
from refsim.timing.report.chakra import COLLECTIVE, COMP, RECV, SEND, Node

CASES = {  # mesh, parallel, size, attention, how it is run
    "pair": ("t3k", "cfg2_sp2_tp2", 512, {}, {}),
    "ring": ("t3k-1x8", "sp8", 512, {}, {}),
    "line": ("t3k-1x8", "sp8", 512, {}, {"topology": Topology.LINEAR}),
    "usp-fsdp": ("t3k-1x8", "sp8", 512, {"attention": "usp", "ring": 4, "ulysses": 2}, {"fsdp": True}),
    "fused": ("t3k-1x8", "tp8", 1024, {}, {}),
    "in-turn": ("t3k-1x8", "tp8", 512, {}, {}),  # a reduce-scatter of few rows begins when its matmul is over
}


@pytest.fixture(scope="module", params=CASES)
def case(request) -> tuple[str, Estimate, list[list[Node]]]:
    mesh, parallel, size, attention, execution = CASES[request.param]
    on = get_mesh(mesh)
    config = parse_parallel(parallel, on, **({"attention": "ring", "ring": None, "ulysses": None} | attention))
    found = estimate(on, config, size, **execution)
    return request.param, found, [chakra.nodes(found, rank) for rank in range(on.num_devices)]


def estimate(on: MeshSpec, config: DiTParallelConfig, size: int, **execution: Any) -> Estimate:
    """SD3.5 with three blocks; ``size``: pixels of a side."""
    model = published()["sd35-large"]
    short = model.but(config=model.config | {"num_layers": 3}, text=77)
    reading = read_published(short, (size // 8, size // 8), RunOptions(on, config, dtype="bf16"), batch=config.cfg)
    how = estimates.Execution(**execution)
    return estimates.estimate(model.name, on, config, size=str(size), reading=reading, execution=how)


def test_a_node_waits_for_earlier_ones_that_are_over(case):
    """So nothing waits for itself."""
    for nodes in case[2]:
        assert [node.id for node in nodes] == list(range(len(nodes)))
        assert all(d < node.id and nodes[d].end <= node.start <= node.end for node in nodes for d in node.deps)


def test_the_longest_chain_takes_the_predicted_seconds(case):
    """On every rank, but inside a Line of more than two, where shards arrive earlier than at its ends."""
    name, found, ranks = case
    lengths = []
    for nodes in ranks:
        done: list[int] = []
        for node in nodes:
            done.append(max((done[d] for d in node.deps), default=0) + node.end - node.start)
        lengths.append(max(done))
    predicted = round(found.timeline.ns / 1000)
    assert max(lengths) == predicted == round(found.forward_seconds * 1e6)
    assert (set(lengths) == {predicted}) == (name != "line") and lengths[0] == lengths[-1] == predicted


def test_every_send_has_its_receive(case):
    name, found, ranks = case
    sent, received = Counter(), Counter()
    for rank, nodes in enumerate(ranks):
        for a in (node.attributes | {"type": node.type} for node in nodes if node.type in (SEND, RECV)):
            key = a["comm_src"], a["comm_dst"], a["comm_tag"], a["comm_size"]
            assert key[0 if a["type"] == SEND else 1] == rank
            (sent if a["type"] == SEND else received)[key] += 1
    assert sent == received and set(sent.values()) <= {1}
    rings = {s.op.id: s.op for s in found.timeline.spans if s.name == "ring_attention"}
    assert len({key[:3] for key in sent}) == len(sent) and bool(rings) == (name not in ("fused", "in-turn"))
    came = sum(key[3] for key in sent if key[1] == 0)
    assert came == sum((op.size - 1) * op.bytes for op in rings.values())


def test_members_of_a_group_do_the_same_collectives(case):
    _, found, ranks = case
    by_group = defaultdict(list)
    for rank, nodes in enumerate(ranks):
        mine = defaultdict(list)
        for a in (node.attributes for node in nodes if node.type == COLLECTIVE):
            mine[a["pg_name"]].append((a["comm_type"], a["comm_size"]))
        for group, collectives in mine.items():
            by_group[group].append((rank, collectives))
    groups = {number: list(members) for members, number in chakra._group_numbers(found).items()}
    for group, members in by_group.items():
        assert [rank for rank, _ in members] == groups[group]
        assert all(collectives == members[0][1] for _, collectives in members)


def test_what_runs_beside_each_other_is_cut(case):
    """Of the two parts that a fused pair runs beside each other, neither waits for the other."""
    name, _, (nodes, *_) = case
    parts = [node for node in nodes if node.name.endswith(", first part")]
    assert bool(parts) == (name == "fused")
    for first in parts:
        rest, beside = (node for node in nodes if first.id in node.deps)
        assert rest.name == first.name.replace("first part", "the rest")
        assert {rest.type, beside.type} == {COMP, COLLECTIVE}
        assert rest.deps == beside.deps and rest.start == beside.start < min(rest.end, beside.end)


def test_all_work_is_there(case):
    """The FLOP of matmuls and attention, cut or not, are those of the prediction."""
    _, found, ranks = case
    done = sum(n.attributes.get("num_ops", 0) for n in ranks[0] if n.op is not None and n.op.kind in ("matmul", "sdpa"))
    assert done == pytest.approx(sum(s.flops for s in found.timeline.spans), rel=1e-6)
    assert {node.type for node in ranks[0]} <= {COMP, SEND, RECV, COLLECTIVE}


LABELS = {"repeated": 3, "optional": 1}
TYPES = {"int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "message": 11, "enum": 14}
SCHEMA = {  # of mlcommons/chakra, schema/protobuf/et_def.proto: the messages and fields that are written here
    "AttributeProto": [
        ("name", 1, "string"), ("int32_val", 7, "int32"), ("int64_val", 9, "int64"), ("uint64_val", 13, "uint64"),
        ("bool_val", 27, "bool"), ("string_val", 29, "string"),
    ],
    "GlobalMetadata": [("version", 1, "string"), ("attr", 2, "AttributeProto[]")],
    "IOInfo": [("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")],
    "Node": [
        ("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "NodeType"), ("ctrl_deps", 4, "uint64[]"),
        ("data_deps", 5, "uint64[]"), ("start_time_micros", 6, "uint64"), ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"), ("outputs", 9, "IOInfo"), ("attr", 10, "AttributeProto[]"),
    ],
}  # fmt: skip
NODE_TYPES = (
    *("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE"),
    *("COMM_RECV_NODE", "COMM_COLL_NODE"),
)


@pytest.fixture(scope="module")
def messages():
    """The schema's classes, made by protobuf."""
    pytest.importorskip("google.protobuf", reason="protobuf reads the traces back; `pip install protobuf`")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        kinds.value.add(name=name, number=number)
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field, number, kind in fields:
            plain, of = kind.removesuffix("[]"), {}
            if plain not in TYPES:
                of = {"type_name": f".ChakraProtoMsg.{plain}"}
            number_of_type = TYPES.get(plain, TYPES["enum" if plain == "NodeType" else "message"])
            label = LABELS["repeated" if kind.endswith("[]") else "optional"]
            added = message.field.add(name=field, number=number, type=number_of_type, label=label, **of)
            if name == "AttributeProto" and field != "name":
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in SCHEMA
    }


@pytest.mark.parametrize("case", ["pair"], indirect=True)
def test_protobuf_reads_what_was_written(case, tmp_path, messages):
    """With the fields that readers look for: the feeder takes sizes from int64_val, ranks from int32_val and so on."""
    _, found, ranks = case
    chakra.write(found, tmp_path / "traces")
    assert len(list((tmp_path / "traces").glob("forward.*.et"))) == 8
    head, *read = records((tmp_path / "traces" / "forward.1.et").read_bytes())
    about = messages["GlobalMetadata"].FromString(head)
    assert about.version == "0.0.4" and "predicted" in about.attr[0].string_val
    made = ranks[1]
    assert len(read) == len(made)
    for data, node in zip(read, made, strict=True):
        back = messages["Node"].FromString(data)
        assert (back.id, back.name, back.type, list(back.data_deps)) == (node.id, node.name, node.type, node.deps)
        assert (back.start_time_micros, back.duration_micros) == (node.start, node.end - node.start)
        assert {a.name: getattr(a, a.WhichOneof("value")) for a in back.attr} == node.attributes
        fields = {a.name: a.WhichOneof("value") for a in back.attr}
        assert (
            fields.get("comm_size", "int64_val") == "int64_val" and fields.get("comm_src", "int32_val") == "int32_val"
        )
        assert fields.get("tensor_size", "uint64_val") == "uint64_val" and fields["is_cpu_op"] == "bool_val"
        if node.op is not None:
            assert json.loads(back.inputs.shapes) == [list(shape) for shape in node.op.inputs]
        assert back.ByteSize() <= len(data) and not back.ctrl_deps
    groups = json.loads((tmp_path / "traces" / "comm_groups.json").read_text())
    assert all(1 in groups[node.attributes["pg_name"]] for node in made if node.type == COLLECTIVE)


def records(data: bytes) -> list[bytes]:
    """What a file holds, each after its length as a varint."""
    from google.protobuf.internal.decoder import _DecodeVarint

    found, at = [], 0
    while at < len(data):
        size, at = _DecodeVarint(data, at)
        found.append(data[at : at + size])
        at += size
    return found
