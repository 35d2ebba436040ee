"""What all nodes and clients of a deployment agree on follows from how far apart its regions are."""

from itertools import pairwise

from msgspec.structs import replace

from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, Region
from unisono.protocols.sequencer.deployed import TOLD_OF_LOSSES_US, sequencer_config


def apart(round_trip_ms: float) -> Deployment:
    return Deployment(1, "two", (Region("here"), Region("there")), {"here there": round_trip_ms})


def test_what_may_be_under_way_grows_with_the_round_trip() -> None:
    """Throughput is at most a window per round trip: one for all would be too little afar."""
    configs = [sequencer_config(apart(ms)) for ms in (0.5, 40, 250)]
    for near, far in pairwise(configs):
        assert (near.window, near.gather) < (far.window, far.gather)
    for config in configs:
        assert 2 * config.gather <= config.window, "the next run leaves before the answer to the last one is back"
        assert config.window < config.issued_max, "what one publisher has under way can still be asked for"
    # Distances in a file change; whoever read it before still understands whoever reads it now.
    assert max(config.window for config in configs) <= min(config.requests_max for config in configs)


def test_marks_come_later_where_the_broker_says_what_it_has_lost() -> None:
    for round_trip_ms in (0.5, 40, 250):
        embedded = apart(round_trip_ms)
        nats = replace(embedded, broker=BrokerSpec("nats", ("nats://127.0.0.1:4222",)))
        assert sequencer_config(embedded).mark_us >= max(TOLD_OF_LOSSES_US, sequencer_config(nats).mark_us)
    assert sequencer_config(replace(apart(0.5), broker=nats.broker)).mark_us < TOLD_OF_LOSSES_US
