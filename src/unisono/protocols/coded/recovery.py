"""Repair by gossip: an incomplete node asks, a complete one says so, and whoever has rows answers within bounds.

Who begins is the style (`CodedConfig.style`): in `need` the node that lacks something, when it has been quiet for a
while; in the thesis' styles the one that is complete. A question or an advert that is lost is made up for by the next
one, and an event that nobody can help with ends at its deadline (`collecting`).
"""

from collections.abc import Iterator

from unisono.errors import InvariantError
from unisono.machine import PERSIST, Broadcast, Effect, Refuse, Send, SetTimer
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.coded.advertiser import Advertiser
from unisono.protocols.coded.arrivals import Arrival, Question, timer_of
from unisono.protocols.coded.messages import (
    SAMPLE,
    Advert,
    Adverts,
    AskPackets,
    EventKey,
    MemberHello,
    Nothing,
    PacketPiece,
    Seen,
)
from unisono.protocols.coded.site import CodedSite
from unisono.structures.decoder import unit

AT_ONCE = 8  # generations asked for in one go
ANY = 255  # the need for a generation of which nothing is known


class Recovery:
    """Questions, answers and adverts of one node."""

    def __init__(self, site: CodedSite) -> None:
        self._site, self._config, self._dice = site, site.config, site.dice
        self._topics, self._arrivals = site.topics, site.arrivals
        self.adverts = Advertiser(site.config)

    # -- the incomplete node asks

    def quiet(self) -> int:
        return self._config.quiet_us + self._dice.randrange(self._config.quiet_us // 2 + 1)

    def tick(self, arrival: Arrival, now: Micros, effects: list[Effect]) -> None:
        """The event has been quiet: ask for what it lacks, and again in every tau."""
        config = self._config
        if now - arrival.last_rx < config.quiet_us and (
            arrival.asked_at is None or arrival.asked_at <= arrival.last_rx
        ):
            effects.append(SetTimer(timer_of("ask", arrival.event), Micros(arrival.last_rx + self.quiet())))
            return
        view = self._topics[arrival.event.topic].view
        for peer, question in arrival.open.items():
            view.learn(peer, question.expected, question.arrived)
            if not question.arrived:
                arrival.avoid[peer] = None
        arrival.open.clear()
        arrival.asked_at = now
        fanout = 1 if arrival.start_over() else config.fanout
        partners = view.draw(fanout, config.polarized, arrival.avoid)
        if not partners:  # everybody has had a turn
            arrival.avoid.clear()
            partners = view.draw(fanout, config.polarized)
        if not partners:
            topic = arrival.event.topic
            effects.append(Broadcast(topic, MemberHello(self._site.me, topic, config.depth), control=True))
        effects.append(PERSIST)
        for peer in partners:
            self._ask(peer, arrival, effects)
        effects.append(SetTimer(timer_of("ask", arrival.event), Micros(now + config.ask_every_us)))

    def _ask(self, peer: Address, arrival: Arrival, effects: list[Effect]) -> None:
        config, expected = self._config, 0
        observed = self._topics[arrival.event.topic].estimator.observed
        for number in arrival.missing()[:AT_ONCE]:
            generation = arrival.generations.get(number)
            need, held = (ANY, b"") if generation is None else (generation.need, b"")
            if config.style != "need" and not config.coded:
                need = ANY  # the thesis' plain styles repeat the whole event
            elif generation is not None:
                held = generation.held_rows()
            expected += need + config.extra if need < ANY else 1
            effects.append(Send(peer, AskPackets(self._site.me, arrival.event, number, need, held, observed)))
        arrival.open[peer] = Question(expected)

    def told_nothing(self, source: Address, event: EventKey, now: Micros, effects: list[Effect]) -> None:
        """Somebody we asked knows nothing of it: ask the next one at once."""
        arrival = self._arrivals.live.get(event)
        if arrival is None or source not in arrival.open:
            return
        membership = self._topics[event.topic]
        membership.view.learn(source, 0, 0)
        del arrival.open[source]
        arrival.avoid[source] = None
        for peer in membership.view.draw(1, self._config.polarized, (*arrival.avoid, *arrival.open)):
            self._ask(peer, arrival, effects)

    def serve(self, ask: AskPackets, now: Micros, effects: list[Effect]) -> None:
        membership = self._topics.get(ask.event.topic)
        if membership is None or ask.source in membership.banned or not 0 < ask.need <= ANY:
            effects.append(Refuse(f"{ask.source} asks for what is not its to ask for"))
            return
        membership.reports.learn(ask.source, ask.observed)
        if ask.source not in membership.view:
            membership.meet((Seen(ask.source, 1),))
        arrival = self._arrivals.find(ask.event)
        generation = arrival.generations.get(ask.generation) if arrival is not None else None
        useful = generation.useful_to(ask.need, ask.held) if generation is not None else 0
        if arrival is None or generation is None or useful <= 0:
            effects.append(Send(ask.source, Nothing(self._site.me, ask.event, ask.generation)))
            return
        config = self._config
        cap = arrival.allowance(ask.source, ask.generation, now, config.ask_every_us)
        count = min(useful + config.extra, cap)
        packets = generation.repairs(ask.need, ask.held, count, config, self._dice)
        if len(packets) > min(ask.need + config.extra, cap):
            raise InvariantError(f"{len(packets)} packets for a need of {ask.need}")  # J5
        if cap < useful:
            self._site.count("over the cap")
        arrival.spend(ask.source, ask.generation, len(packets), now)
        for line, payload in packets:
            data = arrival.packed(ask.generation, line, payload, config.key)
            effects.append(Send(ask.source, PacketPiece(data, self._site.me)))

    # -- the complete node begins

    def spread(self, arrival: Arrival, now: Micros, effects: list[Effect]) -> None:
        config, event = self._config, arrival.event
        match config.style:
            case "push":
                view = self._topics[event.topic].view
                for peer in view.draw(config.fanout, config.polarized):
                    for number, generation in arrival.generations.items():
                        rows = generation.rows
                        packets = [(unit(len(rows), i), row) for i, row in enumerate(rows)]
                        if config.coded:
                            packets = generation.combinations(config.push_packets, self._dice)
                        for line, payload in packets:
                            data = arrival.packed(number, line, payload, config.key)
                            effects.append(Send(peer, PacketPiece(data, self._site.me)))
            case "push-pull":
                self.advertise(event.topic, [event], now, effects)
            case "pull" | "need" | "none":
                self.adverts.later(event, now, effects)

    def advertise(self, topic: Topic, events: list[EventKey], now: Micros, effects: list[Effect]) -> None:
        membership = self._topics.get(topic)
        if membership is None:
            return
        entries = []
        for event in events[: self._config.adverts_max]:
            arrival = self._arrivals.find(event)
            if arrival is not None:
                entries.append(Advert(event, now - arrival.first_seen))
        view, observed = membership.view, membership.estimator.observed
        if not entries:
            return
        news = Adverts(self._site.me, topic, tuple(entries), view.sample(SAMPLE), self._config.depth, observed)
        effects += [Send(peer, news) for peer in view.draw(self._config.fanout, self._config.polarized)]
        if self._config.style == "need" and any(entry.event.publisher == self._site.id for entry in entries):
            # One small message for all events of the period: who heard nothing of an event hears of it here first.
            effects.append(Broadcast(topic, news, control=True))

    def owed(self, adverts: Adverts, now: Micros) -> Iterator[EventKey]:
        """Learns from somebody's adverts; gives the events among them that we should have, and have not."""
        membership = self._topics.get(adverts.topic)
        if membership is None or adverts.source in membership.banned or adverts.source == self._site.me:
            return
        membership.reports.learn(adverts.source, adverts.observed)
        membership.meet((Seen(adverts.source, adverts.depth), *adverts.peers[:SAMPLE]))
        if membership.since is None or adverts.topic not in self._site.subscribed:
            return
        for entry in adverts.entries[: self._config.adverts_max]:
            event = entry.event
            # An event that is older than our subscription is not owed to us.
            is_old = now - entry.age_us < membership.since or event.topic != adverts.topic
            if not is_old and not self._arrivals.is_finished(event):
                yield event

    def ask_advertiser(self, source: Address, arrival: Arrival, now: Micros, effects: list[Effect]) -> None:
        is_due = arrival.asked_at is None or now - arrival.asked_at >= self._config.ask_every_us
        if is_due:
            arrival.open.clear()
        # Whoever asks by itself asks one at a time; the thesis' styles have nothing but adverts to go by.
        if is_due or (self._config.style != "need" and source not in arrival.open):
            arrival.asked_at = now
            effects.append(PERSIST)
            self._ask(source, arrival, effects)
