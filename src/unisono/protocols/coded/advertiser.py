"""Which complete events are still to be advertised, and when. How long rows are kept is another matter (T7, T8)."""

from unisono.machine import Effect, SetTimer
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import EventKey


class Advertiser:
    """Counts each event's adverts down; its timer runs only while there is something to say."""

    def __init__(self, config: CodedConfig) -> None:
        self._config = config
        self._is_set = False
        self.left: dict[EventKey, int] = {}

    def later(self, event: EventKey, now: Micros, effects: list[Effect]) -> None:
        if self._config.fan_in > 0 and self._config.style in ("pull", "need"):
            self.left[event] = self._config.fan_in
            self._set(now, effects)

    def turn(self, now: Micros, effects: list[Effect]) -> dict[Topic, list[EventKey]]:
        """The events to advertise now, newest first."""
        due: dict[Topic, list[EventKey]] = {}
        for event in reversed(self.left):
            due.setdefault(event.topic, []).append(event)
        self.left = {event: left - 1 for event, left in self.left.items() if left > 1}
        self.wake(now, effects)
        return due

    def wake(self, now: Micros, effects: list[Effect]) -> None:
        """The timer is gone: it fired, or the process was restarted."""
        self._is_set = False
        if self.left:
            self._set(now, effects)

    def _set(self, now: Micros, effects: list[Effect]) -> None:
        if not self._is_set:
            self._is_set = True
            effects.append(SetTimer("advert", Micros(now + self._config.advert_every_us)))
