"""Traffic of several sites with planted slow scanners, what sites publish of it, and what a poor transport delivers."""

import hmac
from hashlib import sha256
from random import Random

from msgspec import Struct

from unisono.spark.portscan import ObservedPacket

MS, SECOND = 1_000, 1_000_000


class Traffic(Struct, frozen=True):
    """How much of what. Everything random comes from `seed`."""

    sites: int = 6
    clients: int = 200
    flows: int = 3000
    scanners: int = 12
    probes_per_site: int = 2
    """Below any threshold that a single site could set."""
    duration_us: int = 300 * SECOND
    refused: float = 0.03
    """Honest handshakes that a server refuses with RST."""
    aborted: float = 0.02
    """Honest handshakes that the client gives up after the answer, with RST or silently."""
    seed: int = 0


def address(kind: str, number: int) -> str:
    return f"{kind}-{number}"


def generate(traffic: Traffic) -> tuple[list[ObservedPacket], set[str]]:
    """Packets in the order of time, with real addresses, and the addresses of the scanners."""
    dice = Random(f"{traffic.seed}/traffic")
    packets: list[ObservedPacket] = []
    flow = 0

    def handshake(at: int, site: int, src: str, dst: str, port: int, flags: list[str]) -> None:
        nonlocal flow
        flow += 1
        for flag in flags:
            packets.append(ObservedPacket(at, f"site{site}", src, dst, port, flow, flag))
            at += dice.randint(5 * MS, 60 * MS)  # a round trip

    for _ in range(traffic.flows):
        client = min(int(dice.paretovariate(0.8)), traffic.clients)  # few clients make most connections
        habits = Random(f"{traffic.seed}/{client}")  # and always to the same few services
        services = [(habits.randrange(traffic.sites), habits.randrange(20), habits.choice((443, 993, 5432)))]
        services += [(habits.randrange(traffic.sites), habits.randrange(20), 443) for _ in range(2)]
        site, host, port = dice.choice(services)
        fate = dice.random()
        if fate < traffic.refused:
            flags = ["S", "R"]
        elif fate < traffic.refused + traffic.aborted:
            flags = dice.choice((["S", "SA", "R"], ["S", "SA"]))
        else:
            flags = ["S", "SA", "A"]
        at = dice.randrange(traffic.duration_us)
        handshake(at, site, address("client", client), address("host", host), port, flags)
    scanners = {address("scanner", number) for number in range(traffic.scanners)}
    for name in sorted(scanners):
        for site in range(traffic.sites):
            for _ in range(traffic.probes_per_site):
                flags = ["S", "SA", "R"] if dice.random() < 0.6 else ["S", "SA"]
                at = dice.randrange(traffic.duration_us * 9 // 10)
                handshake(at, site, name, address("host", dice.randrange(20)), dice.randrange(1, 1024), flags)
    packets.sort(key=lambda packet: packet.t)
    return packets, scanners


def pseudonym(key: bytes, name: str) -> str:
    """The same for all sites that share the key; without the key it says nothing."""
    return hmac.new(key, name.encode(), sha256).hexdigest()[:16]


def prepare(packets: list[ObservedPacket], key: bytes, trusted: tuple[str, ...] = ()) -> list[ObservedPacket]:
    """What a site does before it publishes: leaves out those it trusts, and hides the addresses of the rest."""
    return [
        ObservedPacket(p.t, p.site, pseudonym(key, p.src), pseudonym(key, p.dst), p.port, p.flow, p.flag)
        for p in packets
        if p.src not in trusted
    ]


def degrade(packets: list[ObservedPacket], loss: float, jitter_us: int, seed: int) -> list[ObservedPacket]:
    """The same packets as a transport delivers them that loses some and lets others overtake."""
    dice = Random(f"{seed}/transport")
    kept = [packet for packet in packets if dice.random() >= loss]
    if not jitter_us:
        return kept
    return sorted(kept, key=lambda packet: packet.t + dice.expovariate(1 / jitter_us))
