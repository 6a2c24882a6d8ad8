"""refsim's own policy, two shard-sized slots per tensor and direction, with and without the credit.

slots   a step alternates between two slots; a sender does not ask
credit  the same, but a sender writes only after the receiver has freed the slot
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from parity.policies.operations import Fabric, Link, Op, Place, Stream, steps, streams


def slotted(policy: str, rank: int, ranks: int, layers: int, tensors: str, fabric: Fabric) -> Iterator[Op]:
    """Yield what a rank does; the local shard lies in the first direction's slots and is sent both ways from there."""
    passing = streams(rank, ranks, fabric)
    channels = range(fabric.links)
    sent: Counter[Link] = Counter()
    credits: Counter[Link] = Counter()
    arrived: Counter[Link] = Counter()

    def slot(tensor: str, stream: Stream, step: int, channel: int) -> Place:
        way = "" if step == 0 or stream.direction > 0 else "<"
        return Place(f"{tensor}{way}[{step % 2}]", channel)

    for layer in range(layers):
        for tensor in tensors:
            for channel in channels:
                yield Op("write", layer, 0, slot(tensor, passing[0], 0, channel), (layer, rank))
        for step in steps(passing):
            here = [stream for stream in passing if stream.shard(step) is not None]
            coming = [stream for stream in passing if stream.shard(step + 1) is not None and step < stream.hops]
            if step:
                yield from (Op("sent", layer, step, n=n, link=link) for link, n in sent.items())
            if policy == "credit":
                for link in [stream.link(channel, incoming=True) for stream in coming for channel in channels]:
                    credits[link] += len(tensors)
                    yield Op("credit", layer, step, n=credits[link], link=link)
            if step:
                for link in [stream.link(channel, incoming=True) for stream in here for channel in channels]:
                    arrived[link] += len(tensors)
                    yield Op("arrived", layer, step, n=arrived[link], link=link)
            for stream in passing:
                if stream.passes_on(step):
                    for tensor in tensors:
                        for channel in channels:
                            link = stream.link(channel, incoming=False)
                            sent[link] += 1
                            out = slot(tensor, stream, step, channel)
                            there = slot(tensor, stream, step + 1, channel)
                            n = sent[link] if policy == "credit" else 0
                            yield Op("send", layer, step, there, (layer, stream.shard(step)), out, n, link)
            for stream in here if step else here[:1]:
                for tensor in tensors:
                    for channel in channels:
                        place = slot(tensor, stream, step, channel)
                        n = len(tensors) * fabric.links
                        yield Op("read", layer, step, place, (layer, stream.shard(step)), n=n)
        last = max(steps(passing))
        yield from (Op("sent", layer, last, n=n, link=link) for link, n in sent.items())
        yield Op("work", layer, last)
