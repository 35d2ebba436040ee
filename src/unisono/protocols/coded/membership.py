"""What a node knows of one topic it takes part in: members, numbers of publishers, losses, and whom not to trust."""

from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.coded.messages import EventKey, Seen
from unisono.protocols.coded.peers import PartialView
from unisono.protocols.coded.redundancy import Estimator, Reports

BANNED_MAX = 1024
PUBLISHERS_MAX = 4096


class Membership:
    """One topic, seen from one node."""

    __slots__ = ("banned", "estimator", "heads", "reports", "since", "view")

    def __init__(self, view: PartialView) -> None:
        self.view = view
        self.since: Micros | None = None  # when the subscription came into force
        self.heads: dict[int, int] = {}  # publisher -> highest sequence heard on its own path
        self.estimator = Estimator()
        self.reports = Reports()
        self.banned: dict[Address, None] = {}

    def meet(self, peers: tuple[Seen, ...]) -> None:
        for peer in peers:
            if peer.address not in self.banned:
                self.view.add(peer.address, peer.depth)

    def advance(self, event: EventKey) -> int:
        """Notes the number of an event heard on its publisher's own path; returns the head before it, 0 if none."""
        head = self.heads.pop(event.publisher, 0)
        self.heads[event.publisher] = max(event.sequence, head)
        if len(self.heads) > PUBLISHERS_MAX:
            del self.heads[next(iter(self.heads))]
        return head

    def judge(self, failing: list[tuple[Address, ...]], passing: list[Address]) -> int:
        """Bans the peers that shared in every failure of a generation and not in its success; returns how many."""
        banned = 0
        for peer in failing[0] if failing else ():
            if peer not in passing and all(peer in peers for peers in failing) and len(self.banned) < BANNED_MAX:
                self.banned[peer] = None
                self.view.forget(peer)
                banned += 1
        return banned
