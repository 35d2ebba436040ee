"""Registrations at the homes of topics: subscribing in two phases, leaving, and the proof of what clients say.

What a client says about numbers is not believed: a number enters `bar` and `hist` only when it has passed the meeting
point of the two topics; until that is proven the registration is parked, which nobody can tell from a slow link.
"""

from unisono.machine import PERSIST, Effect, Refuse, Send
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
from unisono.protocols.sequencer.site import Site
from unisono.protocols.sequencer.topic import HostedTopic


class Registering:
    """Who subscribes to the topics of one node, as its homes see it."""

    def __init__(self, site: Site) -> None:
        self._site, self._config = site, site.config
        self._hosted, self._clock = site.hosted, site.clock

    def register(self, message: Registration, out: list[Effect]) -> None:
        home = self._hosted[message.topic]
        if message.sid in self._site.gone:
            out.append(Refuse(f"{message.sid} has said goodbye"))
            return
        unproven = self._unproven(home, message.left)
        if unproven:
            if len(home.parked) >= self._config.parked_max:
                out.append(Refuse(f"{len(home.parked)} registrations of topic {home.topic} wait for proofs"))
                return
            out.append(PERSIST)
            home.parked.append(message)
            for x in unproven:
                self.prove(Prove(x, message.left[x], home.topic), out)
            return
        out.append(PERSIST)
        match message:
            case Collect(sid=sid, version=version, topic=topic, new=new):
                if topic in message.topics and topic not in new:  # not where it has left
                    home.register(sid, version, message.topics, message.left)
                part = Part(topic, self._clock[topic], sid, version, tuple(x for x in new if x != topic))
                self._climb(part, out)
            case Install(sid=sid, version=version, topic=topic, topics=topics):
                home.register(sid, version, topics, message.left)
                for x in topics:
                    if x != topic and not self._site.is_full:
                        home.fresh[x] = None  # also when this is a repeated Install: the base may be a later one
                gate = {x: number for x, number in home.hist.items() if x in topics}
                out.append(Send(sid, Installed(topic, version, self._clock[topic], gate)))
            case Update(sid=sid, version=version, topic=topic, topics=topics):
                home.register(sid, version, topics, message.left)
                out.append(Send(sid, Updated(topic, version)))

    def pass_part(self, part: Part, out: list[Effect]) -> None:
        out.append(PERSIST)
        self._site.saw(part.topic, part.number)
        self._climb(part, out)

    def _climb(self, part: Part, out: list[Effect]) -> None:
        todo = tuple(x for x in part.todo if x not in self._clock)
        if todo and self._site.parent is not None:
            out.append(Send(self._site.parent, Part(part.topic, part.number, part.sid, part.version, todo)))
        else:
            out.append(Send(part.sid, Collected(part.topic, part.version)))

    # Numbers that clients name.

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
