"""What a stamper answers clients that join a topic, or miss something of a lane, and whoever watches. Reads only."""

from collections.abc import Callable
from itertools import islice

from unisono.machine import Effect, Refuse, Send
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.protocols.clock.keeper import Keeper
from unisono.protocols.clock.messages import FORGOTTEN, AskBase, AskLanes, Base, FetchEntries, Gone, Lanes, LaneStamps
from unisono.protocols.clock.state import StamperLook, StamperState


def lanes_open(state: StamperState, keeper: Keeper, message: AskLanes, now: Micros) -> list[Effect]:
    """The lanes of a topic that is kept here, and where its own lane stands at this moment."""
    if not state.is_warm:
        return []
    lane, promise = state.lanes[message.topic], state.clock.promise(now)
    watermark, lanes = max(0, lane.watermark(promise)), keeper.lanes_of(message.topic)
    life = (lane.begun, lane.above) if lane.has_all_since else (0, 0)
    return [Send(message.client, Lanes(message.topic, message.token, lane.last, watermark, lanes, *life))]


def base_of(state: StamperState, message: AskBase, now: Micros) -> list[Effect]:
    """Where one of our lanes stands. While its grant may be on its way there is nothing to say yet."""
    topic, _, epoch = message.lane
    lane = state.lanes.get(topic)
    if lane is not None and lane.epoch == epoch:
        if not state.is_warm:
            return []
        watermark = max(0, lane.watermark(state.clock.promise(now)))
        return [Send(message.client, Base(message.lane, message.token, lane.last, watermark))]
    found = state.find_past(message.lane)
    if found is None:
        return [] if topic in state.opening else [Send(message.client, Gone(message.lane, FORGOTTEN))]
    return [Send(message.client, Base(message.lane, message.token, found.last, max(found.stamp, found.floor), True))]


def fetched(state: StamperState, me: int, message: FetchEntries) -> list[Effect]:
    """Entries of one of our lanes, as far as they are kept."""
    if message.lane.stamper != me or message.last < message.first:
        return [Refuse("that lane, or that part of it, is not ours")]
    lane = state.find(message.lane)
    if lane is None:
        return [Send(message.client, Gone(message.lane, message.last))]
    first, entries = lane.entries(message.first, message.last)
    effects: list[Effect] = [Send(message.client, Gone(message.lane, first - 1))] if first > message.first else []
    return [*effects, Send(message.client, LaneStamps(message.lane, first, entries))] if entries else effects


def look_of(
    state: StamperState,
    heard: dict[int, int],
    told: tuple[int, int],
    keeper_of: Callable[[Topic], int | None],
    now: Micros,
    lanes_max: int,
) -> StamperLook:
    """The stamper as it is; `heard` is what the others have promised, `told` how many beats and ticks."""
    clock, promise = state.clock, state.clock.promise(now)
    lanes = [
        (Topic(topic), keeper_of(Topic(topic)) or 0, lane.epoch, lane.last, lane.watermark(promise), lane.lean)
        for topic, lane in islice(state.lanes.items(), lanes_max)
    ]
    waiting, error = len(state.waiting), state.error(now)
    return StamperLook(
        clock.term, state.is_warm, clock.reading(now), clock.read(now), error, waiting, heard, lanes, *told
    )
