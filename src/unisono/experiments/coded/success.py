"""How likely an event is complete after dissemination and after each round of gossip, by the exact model."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.errors import MisuseError
from unisono.experiments.experiment import Experiment, ResultRow, contradiction
from unisono.protocols.coded.channel import Channel
from unisono.protocols.coded.success import Packets, success


class SuccessOptions(Struct, frozen=True):
    """The thesis' setting by default."""

    n: Annotated[int, Meta(ge=1, description="plain packets of an event")] = 10
    redundancy: Annotated[int, Meta(ge=0, description="extra packets the publisher sends")] = 0
    plr: Annotated[float, Meta(ge=0, lt=1, description="packet loss rate")] = 0.2
    abl: Annotated[float, Meta(ge=1, description="average burst length of losses")] = 2.0
    fanout: Annotated[int, Meta(ge=1, description="partners a node meets in a round")] = 1
    rounds: Annotated[int, Meta(ge=1, description="rounds of gossip")] = 5
    packets: Annotated[Packets, Meta(description="copies, combinations of one's own, or one set for all")] = "common"

    def __post_init__(self) -> None:
        try:
            Channel(self.plr, self.abl)
        except MisuseError as error:
            raise contradiction(self, str(error), "plr", "abl") from None


def run(options: SuccessOptions) -> list[ResultRow]:
    channel = Channel(options.plr, options.abl)
    chances = success(options.n, options.redundancy, channel, options.fanout, options.rounds, options.packets)
    return [ResultRow({"round": number}, ours={"success": chance}) for number, chance in enumerate(chances)]


def as_json(rows: list[ResultRow]) -> Any:
    return {"success": [row.ours["success"] for row in rows]}


EXPERIMENT = Experiment(
    title="Success rate versus rounds of gossip",
    source="thesis, sections 5.4.2 and 5.4.3, figures 5.7 to 5.9; formulas corrected",
    options=SuccessOptions,
    run=run,
    as_json=as_json,
)
