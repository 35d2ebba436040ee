"""Lanes as a subscriber sees them: entries without holes, and what may be believed about those to come."""

from msgspec import Struct, field

from unisono.protocols.clock.messages import Closed, Entry, LaneName, Stamped


class LaneView(Struct):
    """One lane. `last` is -1 until it is known where it begins for us: what comes before is only kept."""

    name: LaneName
    last: int = -1
    """All entries up to this place are held, or told as gaps."""
    stamp: int = 0
    """That of the last entry held, or of where the lane begins."""
    watermark: int = 0
    """All later entries are later."""
    early: dict[int, Entry] = field(default_factory=dict)
    """Entries after a hole."""
    claimed: int = 0
    claim: int = 0
    """Believed once everything up to `claimed` is held: all entries after it are later than `claim`."""
    closed: Closed | None = None
    hole_since: int | None = None
    heard_at: int = 0
    """When its stamper's clock was last heard to go on."""
    ends_since: int | None = None
    """Since when it is closed, and nobody has said how it ended."""
    waits_since: int | None = None
    """Since when it, of all lanes, has been what a notification waits for."""
    is_stalled: bool = False
    error: int = -1
    """How far its stamper's clock may be from that of all, as it was told last; -1: nobody knows."""
    is_heard: bool = False
    is_lost: bool = False
    """Its stamper's clock was near enough for real-time order, and is not any more."""

    def begin(self, last: int, watermark: int) -> list[tuple[int, Entry]]:
        self.last, self.stamp, self.watermark = last, watermark, watermark
        early, self.early = self.early, {}
        for place, entry in early.items():
            self._keep(place, entry)
        return self.advance()

    def add(self, first: int, entries: tuple[Entry, ...], early_max: int) -> list[tuple[int, Entry]]:
        """Takes entries; returns those that are now held without a hole before them, with their places."""
        place = first
        for entry in entries:
            if len(self.early) < early_max:
                self._keep(place, entry)
            place += length(entry)
        return self.advance() if self.last >= 0 else []

    def _keep(self, place: int, entry: Entry) -> None:
        """Unless it is held already; of several in a row those that are not."""
        if place + length(entry) - 1 > self.last:
            known = max(0, self.last + 1 - place) if self.last >= 0 else 0
            self.early.setdefault(place + known, behind(entry, known))

    def advance(self) -> list[tuple[int, Entry]]:
        held = []
        while (entry := self.early.pop(self.last + 1, None)) is not None:
            held.append((self.last + 1, entry))
            self.last += length(entry)
            self.stamp = entry.stamp + length(entry) - 1
            if self.early and min(self.early) <= self.last:
                self.early = {place: each for place, each in self.early.items() if place > self.last}
        if held:
            self.hole_since = None
            self.watermark = max(self.watermark, self.stamp)
        self._believe()
        return held

    def hear(self, last: int, watermark: int) -> bool:
        """Somebody claims that all entries after `last` are later than `watermark`; whether that is news."""
        is_news = watermark > self.claim
        if is_news:
            self.claimed, self.claim = last, watermark
        if 0 <= last <= self.last:
            self.watermark = max(self.watermark, watermark)
        self._believe()
        return is_news

    def _believe(self) -> None:
        if 0 <= self.claimed <= self.last:
            self.watermark = max(self.watermark, self.claim)

    @property
    def known(self) -> int:
        """The highest place that anybody has spoken of."""
        closed = self.closed.last if self.closed is not None else -1
        return max(self.claimed if self.claim else 0, closed, max(self.early, default=0))

    @property
    def has_hole(self) -> bool:
        return 0 <= self.last < self.known

    @property
    def has_ended(self) -> bool:
        """Nothing more comes of it, and nothing of it is missing."""
        if self.closed is None or self.last < 0:
            return False
        if self.closed.last >= 0:
            return self.last >= self.closed.last
        return self.watermark >= self.closed.upto

    @property
    def is_closed_out(self) -> bool:
        """Its lease ran out, and nobody has said how it ended."""
        return self.closed is not None and self.closed.last < 0 and not self.has_ended

    def give_up(self) -> tuple[int, int]:
        """The first hole is skipped; returns the stamps that it lies between, the latter included."""
        after = self.stamp
        if self.early:
            place = min(self.early)
            self.last, upto = place - 1, self.early[place].stamp - 1
        else:
            self.last = self.known
            upto = self.closed.upto if self.closed is not None and self.closed.last >= self.known else self.claim
        self.stamp = max(self.stamp, upto)
        self.watermark = max(self.watermark, upto)
        self.hole_since = None
        return after, upto


def length(entry: Entry) -> int:
    """How many places it takes."""
    return entry.count if type(entry) is Stamped else 1


def behind(entry: Entry, count: int) -> Entry:
    """Several in a row without the first of them."""
    if not count or type(entry) is not Stamped:
        return entry
    return Stamped(entry.stamp + count, entry.publisher, entry.request + count, entry.count - count)
