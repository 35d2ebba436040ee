"""Whether replicas have the same state: each says the hash of its own at the same places of the order."""

from collections import Counter

from unisono.errors import DivergedError
from unisono.replicas.operation import StateHash

PLACES_MAX = 16


class HashVotes:
    """The hashes that were said, by place. Those of the oldest places are forgotten."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._said: dict[str, dict[str, StateHash]] = {}

    def hear(self, said: StateHash) -> None:
        self._said.setdefault(said.place, {})[said.client] = said
        while len(self._said) > PLACES_MAX:
            del self._said[next(iter(self._said))]

    def others(self, place: str) -> dict[str, str]:
        """Replica -> its hash at this place."""
        return {said.replica: said.hash for name, said in self._said.get(place, {}).items() if name != self._client}

    def judge(self, place: str) -> None:
        """Raises DivergedError if at least as many replicas have one other state as have ours. Who has followed another
        number of operations to the same place has missed some, or begun too late."""
        said = self._said.get(place, {})
        if self._client not in said:
            return
        states = {name: (one.count, one.hash) for name, one in said.items()}
        mine = states[self._client]
        votes = Counter(states.values())
        rivals = [other for other, number in votes.items() if other != mine and number >= votes[mine]]
        if rivals:
            names = ", ".join(sorted(said[name].replica for name, state in states.items() if state in rivals))
            raise DivergedError(
                f"this replica's state after {mine[0]} operations ({mine[1][:12]}) is not that of {names} at the same "
                f"place, after {rivals[0][0]} ({rivals[0][1][:12]}): a file was changed by hand, an operation was not "
                "deterministic, or a replica has begun in the middle; compare both files with 'unisono replica "
                "compare', then begin again with a copy of the right one"
            )
