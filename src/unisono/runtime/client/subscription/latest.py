"""What `latest_only` keeps of the events that wait for their reader."""

from typing import TYPE_CHECKING

from unisono.model.event import Scalar

if TYPE_CHECKING:
    from unisono.runtime.client.subscription.notification import Notification


class Latest:
    """The newest event that waits, per topic and key: the attribute `key`, if it has one. Older ones are left out when
    their turn comes, so that nothing is searched for."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, Scalar | None], Notification] = {}

    def add(self, notification: "Notification") -> None:
        self._newest[self._key(notification)] = notification

    def is_kept(self, notification: "Notification") -> bool:
        return notification.event is None or self._newest.get(self._key(notification)) is notification

    def take(self, notification: "Notification") -> "Notification | None":
        if not self.is_kept(notification):
            return None
        return self._newest.pop(self._key(notification))

    def _key(self, notification: "Notification") -> tuple[str, Scalar | None]:
        assert notification.event is not None
        return notification.topic, notification.event.attributes.get("key")
