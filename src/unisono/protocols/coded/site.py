"""What the parts of a coded node share: who it is, the topics it takes part in, the events it collects or keeps."""

from random import Random

from unisono.model.ids import Address, Topic
from unisono.protocols.coded.arrivals import Arrivals
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.membership import Membership
from unisono.protocols.coded.peers import PartialView
from unisono.protocols.coded.wire import publisher_id


class CodedSite:
    """One node's state that more than one of its parts looks at."""

    def __init__(self, me: Address, config: CodedConfig, dice: Random, life: str) -> None:
        self.me, self.config, self.dice = me, config, dice
        self.id = publisher_id(Address(f"{me}{life}"))
        self.topics: dict[Topic, Membership] = {}
        """Those we subscribe to, and those we have published on."""
        self.subscribed: dict[Topic, None] = {}
        self.arrivals = Arrivals(config)
        self.counters: dict[str, int] = {}

    def membership(self, topic: Topic) -> Membership:
        if topic not in self.topics:
            self.topics[topic] = Membership(PartialView(self.me, self.config.view_max, self.dice))
            for seed in self.config.seeds:
                self.topics[topic].view.add(seed, 1)
        return self.topics[topic]

    def count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
