"""How much redundancy it takes, packet by packet through real decoders: coded extras against copies on a star, and
coded extras on a SCRIBE tree that loses on every hop, with forwarders that pass on and forwarders that recode."""

from functools import lru_cache
from random import Random
from typing import Annotated

from msgspec import Meta, Struct

from unisono.errors import MisuseError
from unisono.experiments.experiment import Experiment, Figure, ResultRow, Value, contradiction
from unisono.machine import Broadcast, Fired, Heard, SetTimer
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.protocols.coded.arrivals import fragment
from unisono.protocols.coded.channel import Channel, Losses
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.forwarder import Forwarder
from unisono.protocols.coded.messages import EventKey, PacketPiece
from unisono.protocols.coded.redundancy import sending_order
from unisono.protocols.coded.wire import ENVELOPE_BYTES, OVERHEAD_BYTES, ROWS_MAX, Packet, unpack
from unisono.sim.scribe import NodeId, Ring, ScribeTree, node_id
from unisono.structures.decoder import Decoder

CODED = (0, 1, 2, 4, 6, 7, 8, 10, 11, 12, 16, 18, 20)
TREE = (0, 1, 2, 4, 6, 8, 10, 11, 12, 14, 16, 18, 20, 24)
PLAIN = (0, 2, 4, 8, 16, 24, 29, 32, 40, 48, 56, 60)
WAYS = (("coded", CODED), ("plain", PLAIN), ("coded, tree", TREE), ("coded, tree, recoding", TREE))
PAPER = {("coded", 8): 1.0, ("plain", 29): 1.0}
"""The thesis' "complete delivery", read from a figure with two digits."""


class RedundancyOptions(Struct, frozen=True):
    """The thesis' setting: 16 packets, 39 subscribers, 1000 events, PLR .05, ABL 2."""

    rows: Annotated[int, Meta(ge=2, le=ROWS_MAX, description="plain packets of an event")] = 16
    subscribers: Annotated[int, Meta(ge=1, description="receivers of each event")] = 39
    events: Annotated[int, Meta(ge=1, description="publications")] = 1000
    plr: Annotated[float, Meta(ge=0, lt=1, description="packet loss rate")] = 0.05
    abl: Annotated[float, Meta(ge=1, description="average burst length of losses")] = 2.0
    seed: Annotated[int, Meta(description="seed of losses and coefficients")] = 0

    def __post_init__(self) -> None:
        try:
            Channel(self.plr, self.abl)
        except MisuseError as error:
            raise contradiction(self, str(error), "plr", "abl") from None


def run(options: RedundancyOptions) -> list[ResultRow]:
    rows = []
    for content, extras in WAYS:
        for extra in extras:
            missed = _misses(options, content, extra)
            setting: dict[str, Value] = {"content": content, "redundancy": extra}
            success = 1 - missed / (options.events * options.subscribers)
            paper = {"success": PAPER[content, extra]} if (content, extra) in PAPER else {}
            rows.append(ResultRow(setting, ours={"success": round(success, 5), "misses": missed}, paper=paper))
    return rows


def _misses(options: RedundancyOptions, content: str, extra: int) -> int:
    """Receivers that are not complete after dissemination, summed over the events."""
    dice = Random(f"{options.seed}/{content}/{extra}")
    # Short rows: what a receiver can decode depends on coefficients alone.
    config = CodedConfig(
        packet_bytes=OVERHEAD_BYTES + 2 * options.rows,
        rows_max=options.rows,
        event_bytes_max=options.rows**2,
        coded=content != "plain",
        redundancy=extra,
        recode=content.endswith("recoding"),
    )
    multicast = Multicast(options, config, "tree" in content, dice)
    return sum(multicast.misses(sequence) for sequence in range(1, options.events + 1))


class Multicast:
    """A publisher at the root, receivers below it, and a lossy link from each node to each child."""

    def __init__(self, options: RedundancyOptions, config: CodedConfig, is_tree: bool, dice: Random) -> None:
        self._rows, self._config, self._dice = options.rows, config, dice
        channel = Channel(options.plr, options.abl)
        names = [node_id(f"node {i}") for i in range(options.subscribers + 1)]
        tree = _scribe(names, dice) if is_tree else _star(names)
        self._root, self._children = tree.root, tree.children
        self._links = {node: Losses(channel, dice) for node in tree.parent}
        self._forwarders = {node: Forwarder(config, dice) for node in tree.parent if tree.children[node]}

    def misses(self, sequence: int) -> int:
        event = EventKey(Topic(1), 1, sequence)
        size = self._rows**2 - ENVELOPE_BYTES
        arrival = fragment(event, 0, bytes(size), self._config, Micros(0))
        generation, order = arrival.generations[0], sending_order(event, 0, self._rows)
        first = generation.first_packets(order, self._config.redundancy, self._config.coded, self._dice)
        under_way = [(self._root, [arrival.packed(0, *packet, b"") for packet in first])]
        missed = 0
        while under_way:
            node, packets = under_way.pop()
            for child in self._children[node]:
                arrived = [packet for packet in packets if not self._links[child].next_is_lost()]
                missed += not _is_complete(arrived)
                if self._children[child]:
                    under_way.append((child, self._forwarded(child, arrived)))
        return missed

    def _forwarded(self, node: NodeId, packets: list[bytes]) -> list[bytes]:
        if not self._config.recode:
            return packets
        sent, timers = [], []
        inputs: list[Heard | Fired] = [Heard(Topic(1), PacketPiece(packet)) for packet in packets]
        while inputs:
            now = Micros(self._config.quiet_us if isinstance(inputs[0], Fired) else 0)
            for effect in self._forwarders[node].handle(inputs.pop(0), now):
                if isinstance(effect, Broadcast):
                    sent.append(effect.message.data)
                elif isinstance(effect, SetTimer):
                    timers.append(Fired(effect.key))
            if not inputs:
                inputs, timers = [*timers], []
        return sent


def _star(names: list[NodeId]) -> ScribeTree:
    tree = ScribeTree(names[0])
    for name in names[1:]:
        tree.join([name, tree.root])
    return tree


def _scribe(names: list[NodeId], dice: Random) -> ScribeTree:
    """The publisher is where the topic's root is."""
    ring = Ring(dice)
    for name in names:
        ring.add(name)
    key = node_id("topic")
    tree = ScribeTree(ring.closest(key))
    for name in names:
        tree.join(ring.route(name, key))
    return tree


@lru_cache(maxsize=1024)
def _parsed(data: bytes) -> Packet:
    """Once for all receivers of a packet."""
    packet = unpack(data)
    assert isinstance(packet, Packet)
    return packet


def _is_complete(packets: list[bytes]) -> bool:
    if not packets:
        return False
    geometry = _parsed(packets[0]).geometry
    decoder: Decoder[int] = Decoder(geometry.n, geometry.row_bytes)
    for packet in map(_parsed, packets):
        decoder.put(packet.coefficients, packet.payload, 0)
        if decoder.is_complete:
            return True
    return False


EXPERIMENT = Experiment(
    title="Success rate versus redundancy on a star and on a tree",
    source="thesis, section 5.5.1, figure 5.10",
    options=RedundancyOptions,
    run=run,
    figure=Figure("redundancy", "success", "content"),
)
