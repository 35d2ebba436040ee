"""What all connections of a node may hold together."""

from dataclasses import dataclass, field

from unisono.errors import PeerError
from unisono.runtime.links.holding import Holding


@dataclass(eq=False)
class Party:
    """A connection that holds something, and what it was told."""

    held_bytes: int
    is_of_a_client: bool = True
    told: list[str] = field(default_factory=list)

    def refuse(self, error: PeerError) -> None:
        self.told.append(error.code)
        self.held_bytes = 0


def told(*parties: Party, most: int = 100) -> list[list[str]]:
    holding = Holding(most)
    for one in parties:
        holding.note(one, one.held_bytes)
    return [one.told for one in parties]


def test_at_the_bound_of_all_the_client_that_holds_most_is_closed_then_the_next() -> None:
    assert told(Party(20), Party(50), Party(30)) == [[], [], []]
    assert told(Party(20), Party(50), Party(31)) == [[], ["bytes"], []]
    assert told(Party(20), Party(50), Party(30), Party(110)) == [[], [], [], ["bytes"]]
    assert told(Party(40), Party(60), Party(50), most=70) == [[], ["bytes"], ["bytes"]]


def test_links_of_nodes_are_closed_when_no_client_is_left() -> None:
    assert told(Party(90, is_of_a_client=False), Party(20)) == [[], ["bytes"]]
    assert told(Party(90, is_of_a_client=False), Party(60, is_of_a_client=False)) == [["bytes"], []]


def test_what_has_become_less_meanwhile_is_looked_up_at_the_bound() -> None:
    holding, reads, new = Holding(100), Party(80), Party(30)
    holding.note(reads, 80)
    reads.held_bytes = 10
    holding.note(new, 30)
    assert (reads.told, new.told, holding.bytes) == ([], [], 40)
    holding.forget(new)
    holding.note(reads, 0)
    assert holding.bytes == 0
