"""The thesis' comparison in small: who rolls back more than whom, and that all replicas end equal, whoever orders."""

import pytest

from unisono.experiments.replicas.rollbacks import SCHEMES
from unisono.experiments.replicas.world import ReplicaRun, ReplicaScheme, play_replicas

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}


def share(played: ReplicaRun) -> float:
    assert played.agree
    return played.rollbacks.with_undo / played.rollbacks.arrivals


@pytest.mark.parametrize("name", BY_NAME)
def test_all_replicas_end_equal_and_nothing_is_discarded(name: str) -> None:
    played = play_replicas(BY_NAME[name], 50, 60, seed=3)
    assert played.agree
    assert played.discarded == 0


def test_sequencers_that_do_not_ask_each_other_roll_back_most() -> None:
    """Figure 4.3 at 10 operations a second, and what it does not have: SYNC."""
    chain, three = share(play_replicas(BY_NAME["TO"], 10, 80, 1)), share(play_replicas(BY_NAME["UEC k=3"], 10, 80, 1))
    assert chain < three / 3
    assert share(play_replicas(BY_NAME["UEC k=3 SYNC"], 10, 80, 1)) < three / 3
    assert share(play_replicas(BY_NAME["TO, held 100 ms"], 10, 80, 1)) == 0


def test_more_topics_cost_the_chain_time_and_a_coalition_nothing() -> None:
    """Figure 4.5."""

    def late(scheme: ReplicaScheme) -> float:
        return play_replicas(scheme, 25, 60, 2).latency_ms

    assert late(ReplicaScheme("TO", topics=30)) > 1.5 * late(ReplicaScheme("TO", topics=1))
    assert late(ReplicaScheme("UEC", 1, topics=30)) == pytest.approx(late(ReplicaScheme("UEC", 1, topics=1)), rel=0.2)


def test_replicas_that_cannot_keep_up_discard_and_gossip_makes_it_sooner() -> None:
    """Figure 4.4: a message costs a replica 20 ms, and it has room for 100."""
    gossip = play_replicas(BY_NAME["UEC k=1"], 300, 60, 1, service_us=20_000)
    chain = play_replicas(BY_NAME["TO"], 300, 60, 1, service_us=20_000)
    assert gossip.discarded > chain.discarded == 0
    assert gossip.overflowed > chain.overflowed == 0
    assert gossip.copies > 3 * chain.copies
