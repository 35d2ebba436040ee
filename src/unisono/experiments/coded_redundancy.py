"""How much redundancy it takes on a star: coded extras against copies, packet by packet through real decoders."""

from random import Random
from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, Row, Value
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.protocols.coded.arrivals import fragment
from unisono.protocols.coded.channel import Channel, Losses
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import EventKey
from unisono.protocols.coded.redundancy import sending_order
from unisono.protocols.coded.wire import ENVELOPE_BYTES, OVERHEAD_BYTES
from unisono.structures.decoder import Decoder

CODED = (0, 1, 2, 4, 6, 7, 8, 10, 12, 16, 18, 20)
PLAIN = (0, 2, 4, 8, 16, 24, 29, 32, 40, 48, 56, 60)
PAPER = {("coded", 8): 1.0, ("plain", 29): 1.0}
"""The thesis' "complete delivery", read from a figure with two digits."""


class Options(Struct, frozen=True):
    """The thesis' setting: 16 packets, 39 subscribers, 1000 events, PLR .05, ABL 2."""

    rows: Annotated[int, Meta(description="plain packets of an event")] = 16
    subscribers: Annotated[int, Meta(description="receivers of each event")] = 39
    events: Annotated[int, Meta(description="publications")] = 1000
    plr: Annotated[float, Meta(description="packet loss rate")] = 0.05
    abl: Annotated[float, Meta(description="average burst length of losses")] = 2.0
    seed: Annotated[int, Meta(description="seed of losses and coefficients")] = 0


def run(options: Options) -> list[Row]:
    rows = []
    for content, extras in (("coded", CODED), ("plain", PLAIN)):
        for extra in extras:
            missed = _misses(options, content == "coded", extra)
            setting: dict[str, Value] = {"content": content, "redundancy": extra}
            success = 1 - missed / (options.events * options.subscribers)
            paper = {"success": PAPER[content, extra]} if (content, extra) in PAPER else {}
            rows.append(Row(setting, ours={"success": round(success, 5), "misses": missed}, paper=paper))
    return rows


def _misses(options: Options, coded: bool, extra: int) -> int:
    """Receivers that are not complete after dissemination, summed over the events."""
    dice = Random(f"{options.seed}/{coded}/{extra}")
    channel = Channel(options.plr, options.abl)
    links = [Losses(channel, dice) for _ in range(options.subscribers)]
    # Short rows: what a receiver can decode depends on coefficients alone.
    config = CodedConfig(packet_bytes=OVERHEAD_BYTES + 2 * options.rows, rows_max=options.rows)
    missed = 0
    for sequence in range(1, options.events + 1):
        event = EventKey(Topic(1), 1, sequence)
        generation = fragment(event, 0, bytes(options.rows**2 - ENVELOPE_BYTES), config, Micros(0)).generations[0]
        order = sending_order(event, 0, options.rows)
        packets = generation.first_packets(order, extra, coded, dice)
        for link in links:
            arrived = [packet for packet in packets if not link.next_is_lost()]
            decoder: Decoder[int] = Decoder(options.rows, generation.geometry.row_bytes)
            for coefficients, payload in arrived:
                decoder.put(coefficients, payload, 0)
                if decoder.is_complete:
                    break
            missed += not decoder.is_complete
    return missed


EXPERIMENT = Experiment(
    title="Success rate versus redundancy on a star",
    source="thesis, section 5.5.1, figure 5.10",
    options=Options,
    run=run,
    figure=Figure("redundancy", "success", "content"),
)
