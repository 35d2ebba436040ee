"""Whether replicas have the same state: each says the hash of its own at the same places of the order."""

from collections import Counter

from unisono.errors import DivergedError
from unisono.replicas.operation import StateHash

PLACES_MAX = 16


class HashVotes:
    """The hashes that were said, by place. Those of the oldest places are forgotten."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._said: dict[int, dict[str, StateHash]] = {}

    def hear(self, said: StateHash) -> None:
        self._said.setdefault(said.count, {})[said.client] = said
        while len(self._said) > PLACES_MAX:
            del self._said[min(self._said)]

    def others(self, count: int) -> dict[str, str]:
        """Replica -> its hash at this place."""
        return {said.replica: said.hash for name, said in self._said.get(count, {}).items() if name != self._client}

    def judge(self, count: int) -> None:
        """Raises DivergedError if at least as many replicas have one other state as have ours."""
        said = self._said.get(count, {})
        if self._client not in said:
            return
        mine = said[self._client].hash
        votes = Counter(one.hash for one in said.values())
        rivals = [other for other, number in votes.items() if other != mine and number >= votes[mine]]
        if rivals:
            names = ", ".join(sorted(one.replica for one in said.values() if one.hash in rivals))
            raise DivergedError(
                f"after {count} operations this replica's state ({mine[:12]}) is not that of {names} "
                f"({rivals[0][:12]}): a file was changed by hand, or an operation was not deterministic; compare both "
                "files with 'unisono replica compare', then begin again with a copy of the right one"
            )
