"""Registrations at the homes of topics: subscribing in two phases, leaving, and the proof of what clients say.

What a client says about numbers is not believed: a number enters `bar` and `hist` only when it has passed the meeting
point of the two topics; until that is proven the registration is parked, which nobody can tell from a slow link.
"""

from msgspec.structs import replace

from unisono.machine import PERSIST, Effect, Refuse, Send
from unisono.model.ids import Topic
from unisono.protocols.sequencer.inputs import Registration
from unisono.protocols.sequencer.messages import (
    Collect,
    Collected,
    Denied,
    Disproved,
    Entries,
    Install,
    Installed,
    Part,
    Prove,
    Proven,
    Topics,
    Update,
    Updated,
)
from unisono.protocols.sequencer.topic_manager.site import Site
from unisono.protocols.sequencer.topic_manager.topic import HostedTopic


class Registering:
    """Who subscribes to the topics of one node, as its homes see it."""

    def __init__(self, site: Site) -> None:
        self._site, self._config = site, site.config
        self._hosted, self._clock = site.hosted, site.clock

    def register(self, message: Registration, out: list[Effect]) -> None:
        """All of `here` is at home here. What waits for a proof waits topic by topic."""
        if message.sid in self._site.gone:
            out.append(Refuse(f"{message.sid} has said goodbye"))
            return
        out.append(PERSIST)
        self._site.circles.begin_anew()
        homes = [self._hosted[topic] for topic in message.here]
        if message.left:
            homes = [home for home in homes if self._is_proven(home, message, out)]
        topics = tuple(dict.fromkeys(message.topics))  # a client may name one twice, which must count once
        sid, version, heard = message.sid, message.version, frozenset(topics)
        match message:
            case Collect(new=new):
                for home in homes:
                    if home.topic in heard and home.topic not in new:  # not where it has left
                        home.register(sid, version, topics, message.left, message.short)
                if homes:
                    collected = {home.topic: self._clock[home.topic] for home in homes}
                    self._climb(Part(collected, sid, version, new), out)
            case Install():
                for home in homes:
                    home.register(sid, version, topics, message.left, message.short)
                    if not self._site.is_full:
                        home.group.install(topics)  # also when this is repeated: the base may be a later one
                    gate = {x: number for x, number in home.hist.items() if x in heard}
                    out.append(Send(sid, Installed(home.topic, version, self._clock[home.topic], gate)))
            case Update():
                for home in homes:
                    home.register(sid, version, topics, message.left, message.short)
                    out.append(Send(sid, Updated(home.topic, version)))

    def pass_part(self, part: Part, out: list[Effect]) -> None:
        out.append(PERSIST)
        for topic, number in part.collected.items():
            self._site.saw(Topic(topic), number)
        self._climb(part, out)

    def _climb(self, part: Part, out: list[Effect]) -> None:
        todo = tuple(x for x in part.todo if x not in self._clock)
        if todo and self._site.parent is not None:
            out.append(Send(self._site.parent, Part(part.collected, part.sid, part.version, todo)))
        else:
            out += [Send(part.sid, Collected(topic, part.version)) for topic in part.collected]

    # Numbers that clients name.

    def _is_proven(self, home: HostedTopic, message: Registration, out: list[Effect]) -> bool:
        """Whether it may be registered at this home now; if not, it waits."""
        unproven = self._unproven(home, message.left)
        if not unproven:
            return True
        if len(home.parked) >= self._config.parked_max:
            out.append(Refuse(f"{len(home.parked)} registrations of topic {home.topic} wait for proofs"))
            return False
        home.parked.append(replace(message, here=(home.topic,)))
        for x in unproven:
            self.prove(Prove(x, message.left[x], home.topic), out)
        return False

    def _unproven(self, home: HostedTopic, left: Entries) -> Topics:
        return tuple(
            x
            for x, number in left.items()
            if x != home.topic and number > self._clock.get(x, 0) and number > home.proven.get(x, 0)
        )

    def prove(self, message: Prove, out: list[Effect]) -> None:
        """Answered at the meeting point if it has seen the number, else by the home of the topic."""
        topic, number, asker = message.topic, message.number, message.asker
        seen = self._clock.get(topic, 0)
        if number <= seen and (topic in self._hosted or asker in self._clock):
            proven = Proven(asker, topic, seen)
            if self._site.is_here(asker, proven, out):
                self.proven(proven, out)
        elif topic not in self._hosted and self._site.toward(topic) is not None:
            self._site.onward(topic, message, out)
        else:
            disproved = Disproved(asker, topic, number)
            if self._site.is_here(asker, disproved, out):
                self.disproved(disproved, out)

    def proven(self, message: Proven, out: list[Effect]) -> None:
        home, x = self._hosted[message.asker], message.topic
        home.proven[x] = max(home.proven.get(x, 0), message.number)
        out.append(PERSIST)
        parked, home.parked = home.parked, []
        for waiting in parked:
            if self._unproven(home, waiting.left):
                home.parked.append(waiting)
            else:
                self.register(waiting, out)

    def disproved(self, message: Disproved, out: list[Effect]) -> None:
        home = self._hosted[message.asker]
        out.append(PERSIST)
        parked, home.parked = home.parked, []
        for waiting in parked:
            if waiting.left.get(message.topic, 0) < message.number:
                home.parked.append(waiting)
                continue
            reason = f"number {waiting.left[message.topic]} of topic {message.topic} was never issued"
            out.append(Refuse(f"{waiting.sid}: {reason}"))
            out.append(Send(waiting.sid, Denied(home.topic, waiting.version, reason)))
