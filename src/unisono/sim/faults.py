"""What goes wrong, and when: crashes between any two effects, partitions, clogs, pauses, clocks that are off.

Every fault begins at `at` plus a random part of `within`, and happens `times` times; hosts are named by shell patterns.
Faults hinder links between hosts; the paths of the ENS have losses of their own (`unisono.sim.ens`).
"""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from unisono.errors import MisuseError
from unisono.model.ids import Address
from unisono.sim.host import Host
from unisono.sim.spec import Span, Spec

if TYPE_CHECKING:
    from unisono.sim.world import World


class _When(Spec, frozen=True):
    at: Span = Span(0)
    within: Span = Span(0)
    times: int = 1


class Crash(_When, frozen=True, tag_field="kind", tag="crash"):
    """One host named like `who` stops, and comes back after `down`, with or without its disk."""

    who: str = "*"
    effect: int = 0
    """It stops instead of performing this effect, counted from the fault's moment; 0: a random one of the next 8."""
    down: Span = Span(500_000)
    disk: bool = True
    back: bool = True


class Partition(_When, frozen=True, tag_field="kind", tag="partition"):
    """Hosts named like `who` and all others lose what they send each other for a while."""

    who: str = "*"
    lasts: Span = Span(1_000_000)
    one_way: bool = False
    """Only what leaves the named hosts is lost."""


class Clog(_When, frozen=True, tag_field="kind", tag="clog"):
    """The links of one host named like `who` keep what is sent over them for a while, then let it all go."""

    who: str = "*"
    lasts: Span = Span(1_000_000)


class SwizzleClog(_When, frozen=True, tag_field="kind", tag="swizzle-clog"):
    """Some hosts are clogged one after the other, then freed in another order: rare races, cheaply."""

    who: str = "*"
    lasts: Span = Span(1_000_000)


class Pause(_When, frozen=True, tag_field="kind", tag="pause"):
    """One host named like `who` handles nothing for a while; its inputs, timers too, wait."""

    who: str = "*"
    lasts: Span = Span(1_000_000)


class Skew(_When, frozen=True, tag_field="kind", tag="skew"):
    """The clocks of hosts named like `who` are off by up to `by`, ahead or behind, each by its own amount."""

    who: str = "*"
    by: Span = Span(100_000)


Fault = Crash | Partition | Clog | SwizzleClog | Pause | Skew


def schedule_faults(world: "World", faults: tuple[Fault, ...]) -> None:
    """Makes every fault happen at its time."""
    dice = world.dice("faults")
    for fault in faults:
        if not _matching(world, fault.who):
            raise MisuseError(f"a fault names {fault.who!r}, but there are only {', '.join(world.hosts)}")
        for _ in range(fault.times):
            world.at(fault.at + dice.randint(0, fault.within), _begin, world, fault)


def _matching(world: "World", pattern: str) -> list[Host]:
    return [host for host in world.hosts.values() if fnmatchcase(host.address, pattern)]


def _begin(world: "World", fault: Fault) -> None:
    dice, hosts = world.dice("faults"), _matching(world, fault.who)
    match fault:
        case Crash():
            _crash(world, dice.choice(hosts), fault)
        case Partition(lasts=lasts, one_way=one_way):
            inside = {host.address: None for host in hosts}
            pairs = [(a, b) for a in inside for b in world.hosts if b not in inside]
            pairs += [] if one_way else [(b, a) for a, b in pairs]
            world.note("fault", note=f"{', '.join(inside)} cut off")
            _hinder(world, pairs, "cut", lasts)
        case Clog(lasts=lasts):
            host = dice.choice(hosts)
            world.note("fault", host.address, note="clogged")
            _hinder(world, _links_of(world, host), "clog", lasts)
        case SwizzleClog(lasts=lasts):
            some = dice.sample(hosts, dice.randint(1, len(hosts)))
            world.note("fault", note=f"{', '.join(host.address for host in some)} clogged one by one")
            for host in some:
                first = dice.randint(0, lasts // 2)
                world.after(
                    first, _hinder, world, _links_of(world, host), "clog", dice.randint(lasts // 2, lasts) - first
                )
        case Pause(lasts=lasts):
            host = dice.choice(hosts)
            world.note("fault", host.address, note="paused")
            host.pause()
            world.after(lasts, host.resume)
        case Skew(by=by):
            for host in hosts:
                host.skew_us = dice.randint(-by, by)
                world.note("fault", host.address, note=f"clock off by {host.skew_us} us")


def _crash(world: "World", host: Host, fault: Crash) -> None:
    if not host.is_up or host.crash_at is not None:
        return
    dice = world.dice("faults")
    host.crash_at = host.effects + (fault.effect or dice.randint(1, 8))
    if fault.back:
        host.on_crash = lambda: world.after(fault.down, host.restart, fault.disk)


def _links_of(world: "World", host: Host) -> list[tuple[Address, Address]]:
    others = [address for address in world.hosts if address != host.address]
    return [(host.address, other) for other in others] + [(other, host.address) for other in others]


def _hinder(world: "World", pairs: list[tuple[Address, Address]], how: Literal["cut", "clog"], lasts: int) -> None:
    world.network.hinder(pairs, how)
    world.after(lasts, world.network.heal, pairs, how)
