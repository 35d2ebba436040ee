"""What goes wrong, and when: crashes between any two effects, disks, data that is set back, links, pauses, clocks.

Every fault begins at `at` plus a random part of `within`, and happens `times` times; hosts are named by shell patterns.
Faults hinder links between hosts; the paths of the ENS have losses of their own (`unisono.sim.ens`).
"""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from unisono.errors import MisuseError
from unisono.model.ids import Address
from unisono.sim.disk import SimulatedDisk
from unisono.sim.host import SimulatedHost
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
    skew: Span = Span(-1)
    """It comes back with a clock that is off by up to this, ahead or behind; 0: with a right one; -1: as it was."""


class BadDisk(_When, frozen=True, tag_field="kind", tag="bad-disk"):
    """The disk of one durable host named like `who` refuses its next commit, which ends the process: nothing of that
    turn leaves. It comes back after `down`, and finds the commit or not."""

    who: str = "*"
    down: Span = Span(500_000)


class SlowDisk(_When, frozen=True, tag_field="kind", tag="slow-disk"):
    """Every commit of one durable host named like `who` takes `by` longer for a while; its inputs wait for the next."""

    who: str = "*"
    by: Span = Span(100_000)
    lasts: Span = Span(1_000_000)


class Rollback(_When, frozen=True, tag_field="kind", tag="rollback"):
    """One host named like `who` stops, and goes on after `down` with less data than it had, and a person lets it."""

    who: str = "*"
    how: Literal["any", "set back", "cut", "lost"] = "any"
    """Set back to what it was `age` before; its log cut somewhere; all of it lost; one of these by lot."""
    age: Span = Span(1_000_000)
    down: Span = Span(500_000)
    amid: bool = True
    """It may stop between two effects of a turn, when it has said what it has not shown to anybody yet."""


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


Fault = Crash | BadDisk | SlowDisk | Rollback | Partition | Clog | SwizzleClog | Pause | Skew


def schedule_faults(world: "World", faults: tuple[Fault, ...]) -> None:
    """Makes every fault happen at its time."""
    dice = world.dice("faults")
    for fault in faults:
        if not _matching(world, fault.who):
            raise MisuseError(f"a fault names {fault.who!r}, but there are only {', '.join(world.hosts)}")
        for _ in range(fault.times):
            world.at(fault.at + dice.randint(0, fault.within), _begin, world, fault)


def _matching(world: "World", pattern: str) -> list[SimulatedHost]:
    return [host for host in world.hosts.values() if fnmatchcase(host.address, pattern)]


def _begin(world: "World", fault: Fault) -> None:
    dice, hosts = world.dice("faults"), _matching(world, fault.who)
    match fault:
        case Crash():
            _crash(world, dice.choice(hosts), fault)
        case BadDisk(down=down):
            host = dice.choice(hosts)
            if host.is_up and host.crash_at is None:
                host.commit_fails = True
                host.on_crash = lambda: world.after(down, host.restart)
        case SlowDisk(by=by, lasts=lasts):
            host = dice.choice(hosts)
            world.note("fault", host.address, note=f"commits take {by} us longer")
            host.commit_extra_us += by
            world.after(lasts, _hurry, host, by)
        case Rollback(age=age):
            host = dice.choice(hosts)
            if host.on_forgotten is None:
                raise MisuseError(f"{host.address} has no data that could be set back: fault.who names {fault.who!r}")
            world.after(age, _roll_back, world, host, fault, host.disk.copy())
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


def _hurry(host: SimulatedHost, by: int) -> None:
    host.commit_extra_us -= by


def _crash(world: "World", host: SimulatedHost, fault: Crash) -> None:
    if not host.is_up or host.crash_at is not None or host.commit_fails:
        return
    dice = world.dice("faults")
    host.crash_at = host.effects + (fault.effect or dice.randint(1, 8))
    if fault.back:
        host.on_crash = lambda: world.after(fault.down, _come_back, world, host, fault)


def _come_back(world: "World", host: SimulatedHost, fault: Crash) -> None:
    if fault.skew >= 0 and not host.is_up:
        host.skew_us = world.dice("faults").randint(-fault.skew, fault.skew)
        world.note("fault", host.address, note=f"clock off by {host.skew_us} us")
    host.restart(fault.disk)


def _roll_back(world: "World", host: SimulatedHost, fault: Rollback, backup: SimulatedDisk) -> None:
    if not host.is_up or host.crash_at is not None or host.commit_fails:
        return
    dice = world.dice("faults")
    how = dice.choice(("set back", "cut", "lost")) if fault.how == "any" else fault.how

    def crashed() -> None:
        left = {
            "set back": backup,
            "cut": host.disk.copy(dice.randint(0, len(host.disk.log))),
            "lost": SimulatedDisk(),
        }[how]
        # Connections end with the process: what is sent meanwhile reaches nobody.
        pairs = _links_of(world, host)
        world.network.hinder(pairs, "cut")
        world.after(fault.down, host.roll_back, left, f"with data that was {how}")
        world.after(fault.down, world.after, 0, world.network.heal, pairs, "cut")

    host.on_crash = crashed
    if fault.amid:
        host.crash_at = host.effects + dice.randint(1, 8)
    else:
        host.crash()


def _links_of(world: "World", host: SimulatedHost) -> list[tuple[Address, Address]]:
    others = [address for address in world.hosts if address != host.address]
    return [(host.address, other) for other in others] + [(other, host.address) for other in others]


def _hinder(world: "World", pairs: list[tuple[Address, Address]], how: Literal["cut", "clog"], lasts: int) -> None:
    world.network.hinder(pairs, how)
    world.after(lasts, world.network.heal, pairs, how)
