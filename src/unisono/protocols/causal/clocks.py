"""Is the own clock right? Every gossip says what its sender's clock reads (specs, section 0).

Brokers decide, for what everybody hears is stamped by theirs: however many clients have the time of one machine that is
wrong, nobody else is. Of two brokers either may be the wrong one, so there most of all who are heard have to agree with
the other. A broker that hears of no other is right. A delay can only make others look late, so of what each says the
most counts.
"""

from typing import Literal

from unisono.model.ids import Address
from unisono.protocols.causal.config import CausalConfig

CLOCKS_MAX = 15
"""Brokers, and as many others, whose clocks are compared with the own one."""
OFF_ROUNDS = 5
"""Comparisons in a row after which a clock counts as off: datagrams that waited while we slept are old, not wrong."""

REMEDY = "set the time of this machine and start the program again"
"""A process corrects its clock by half a millisecond a second at most, whatever the machine's is set to."""

ClockChange = Literal["off", "right"]


class ClockComparison:
    """What is heard of others' clocks, until it is enough to judge the own one."""

    def __init__(self, config: CausalConfig, is_broker: bool) -> None:
        self._limit = config.eps_ticks + 1
        """A tick more: clocks are read as whole ticks, and a message takes some time."""
        self._is_broker = is_broker
        self._lately = config.fade_ticks // config.round_ticks
        self._brokers: dict[Address, int] = {}  # how far they are ahead of us, since the last comparison
        self._clients: dict[Address, int] = {}
        self._heard_at: dict[Address, int] = {}  # brokers, and the round in which they were heard last
        self._round = self._in_a_row = 0
        self.off_by = 0
        """By how many ticks most brokers are ahead of the own clock, if it is off; 0: it is right."""

    def hear(self, address: Address, ahead: int, is_broker: bool) -> None:
        heard = self._brokers if is_broker else self._clients
        known = heard.pop(address, None)
        heard[address] = ahead if known is None else max(ahead, known)
        if len(heard) > CLOCKS_MAX:
            del heard[next(iter(heard))]
        if is_broker:
            self._heard_at[address] = self._round

    def end_round(self) -> ClockChange | None:
        """Compares, if enough was heard; returns what has turned out."""
        self._round += 1
        self._heard_at = {who: at for who, at in self._heard_at.items() if at >= self._round - self._lately}
        brokers, is_pair = list(self._brokers.values()), self._is_broker and len(self._heard_at) == 1
        everybody = [*brokers, *self._clients.values()]
        if not brokers or len(brokers) < min(2, len(self._heard_at)) or (is_pair and len(everybody) < 2):
            return None
        self._brokers, self._clients = {}, {}
        apart = self._contradiction(brokers)
        if is_pair and self._contradiction(everybody) * apart <= 0:
            apart = 0
        self._in_a_row = self._in_a_row + 1 if apart else 0
        was_off, self.off_by = bool(self.off_by), apart if self._in_a_row >= OFF_ROUNDS else 0
        if bool(self.off_by) == was_off:
            return None
        return "right" if was_off else "off"

    def _contradiction(self, ahead: list[int]) -> int:
        """By how much more than half of them are ahead of us, or negative: we of them; 0 if they are not."""
        for side in ([each for each in ahead if each > self._limit], [each for each in ahead if each < -self._limit]):
            if 2 * len(side) > len(ahead):
                return sorted(side)[len(side) // 2]
        return 0


def how_wrong(off_by: int, config: CausalConfig) -> str:
    """In words, after "the clock of …": `is 2000 ms slow, by those of the brokers`."""
    milliseconds = abs(off_by) * config.tick_us // 1000
    return f"is {milliseconds} ms {'slow' if off_by > 0 else 'fast'}, by those of the brokers"
