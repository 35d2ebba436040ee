"""The ordering module of a client: publisher half and subscriber half as one machine.

It has the interface of the broker beneath it: Publish, Subscribe and Unsubscribe from above; Heard, Joined and the
notices of `unisono.machine` to above. A client that has crashed comes back under a new address.
"""

from typing import assert_never

from unisono.machine import (
    Deliver,
    Effect,
    Fired,
    Heard,
    Joined,
    Missed,
    NotTaken,
    Paused,
    Publish,
    Refuse,
    Restarted,
    Subscribe,
    Unsubscribe,
)
from unisono.model.event import Event, EventRow
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import HomeReborn
from unisono.protocols.sequencer.messages import (
    Answer,
    Collected,
    Completed,
    Denied,
    Installed,
    Moved,
    Renewed,
    Taken,
    Told,
    Updated,
    Withdrawn,
)
from unisono.protocols.sequencer.ordering_client.publisher import OrderingPublisher
from unisono.protocols.sequencer.ordering_client.subscriber import OrderingSubscriber
from unisono.structures.sessions import Reconnected

ClientInput = (
    Answer
    | Reconnected
    | HomeReborn
    | Publish
    | Subscribe
    | Unsubscribe
    | Heard
    | Joined
    | NotTaken
    | Missed
    | Paused
    | Fired
    | Restarted
)


class OrderingClient:
    """Total notification order over a topic broker, at one client."""

    def __init__(
        self, address: Address, homes: dict[Topic, Address], config: SequencerConfig = SequencerConfig()
    ) -> None:
        """`homes` names a node for every topic: its home, or any node that will pass messages on to it."""
        self.homes = dict(homes)
        self.publisher = OrderingPublisher(address, self.homes, config)
        self.subscriber = OrderingSubscriber(address, self.homes, config)
        self._delivery, self._subscription = self.subscriber.delivery, self.subscriber.subscription

    @property
    def held(self) -> int:
        """Payloads that wait for their numbers, or for events before them."""
        return sum([feed.payloads.count for feed in self._delivery.feeds.values()])

    def passed(self, topic: Topic) -> int | None:
        """Nothing of the topic up to this number is still to be told; None: it is not in force."""
        return self.subscriber.hold.local.get(topic)

    def handle(self, message: ClientInput, now: Micros) -> list[Effect]:
        out: list[Effect] = []
        publisher, subscriber = self.publisher, self.subscriber
        match message:
            case Heard(topic=topic, message=heard):
                self._delivery.heard(topic, heard, now, out)
            case Publish(topic=topic, message=event, request=request):
                if isinstance(event, Event):
                    publisher.publish(topic, event, request, not subscriber.open, now, out)
                elif isinstance(event, tuple | EventRow):
                    publisher.publish_all(topic, event, request, not subscriber.open, now, out)
                else:
                    out.append(Refuse(f"an Event is published, not {type(event).__name__}"))
            case Subscribe(topics=topics):
                unknown = [topic for topic in topics if topic not in self.homes]
                if unknown:
                    out.append(Refuse(f"nobody hosts topic {unknown[0]}"))
                else:
                    self._subscription.subscribe(topics, now, out)
            case Unsubscribe(topics=topics):
                self._subscription.unsubscribe(topics, now, out)
            case Joined(topic=topic):
                self._subscription.joined(topic, now, out)
            case NotTaken():
                publisher.not_taken(message, now, out)
            case Missed(topic=topic):
                subscriber.missed(topic, now, out)
            case Paused(is_paused=is_paused):
                subscriber.pause(is_paused, now)
            case Taken():
                publisher.taken(message, now, out)
            case Completed():
                publisher.completed(message, not subscriber.open, now, out)
            case Collected():
                self._subscription.collected(message, now, out)
            case Installed():
                self._subscription.installed(message, now, out)
            case Renewed():
                self._subscription.renewed(message, now, out)
            case Updated():
                self._subscription.updated(message)
            case Denied():
                self._subscription.denied(message, now, out)
            case Told():
                subscriber.told(message, now, out)
            case Moved(topic=topic, home=home):
                if publisher.learn_of(message):  # a home that is no more may have numbered what is open
                    publisher.give_up((topic,), out)
                self.homes[topic] = home
            case Reconnected():
                publisher.reconnected(now, out)
                self._subscription.reconnected(now, out)
            case HomeReborn(node=node):
                publisher.give_up(tuple(topic for topic, home in self.homes.items() if home == node), out)
                out.append(Deliver(message))
            case Fired(key=key):
                if key == "create":
                    publisher.fired(now, out)
                else:
                    subscriber.fired(key, now, out)
            case Withdrawn():
                publisher.withdrawn(message)
            case Restarted():
                out.append(Refuse("a client that has crashed comes back under a new address"))
            case _:
                assert_never(message)
        if publisher.held and not subscriber.open:
            publisher.release(True, now, out)
        return out
