"""Golden dialogues: frames are sent and heard by real machines, and what becomes of them is written down.

Lines that start with `$` are commands, the lines below are what followed. Commands:

    life 3, eps 1                    constants in ticks
    brokers A B C                    each a group of its own          subscriber S1 of G1 G2
    A is in G1 G2                    a broker that takes part in groups of topics
    A sends m1 to B C at 4 by 20     a frame; without `by`, with the life of the deployment
    D hears m1 at 5                  D's clock is at 5                D is at 12          nothing comes, time passes

`python -m tests.papers.causal.dialogue FILE` prints the script as it should be.
"""

import sys
from pathlib import Path

from tests.papers.causal.test_printed import CONFIG
from unisono.protocols.causal.messages import CausalFrame, FrameFate
from unisono.protocols.causal.order import CausalOrder, SettledFrame


class Dialogue:
    """The members of one script."""

    def __init__(self) -> None:
        self.config = CONFIG
        self.groups: dict[str, int] = {}
        self.members: dict[str, CausalOrder] = {}
        self.frames: dict[str, CausalFrame] = {}

    def group(self, name: str) -> int:
        return self.groups.setdefault(name, len(self.groups) + 1)

    def command(self, line: str) -> list[str]:
        words = line.replace(",", "").split()
        match words:
            case ["life", life, "eps", eps]:
                self.config = type(CONFIG)(
                    life_ticks=int(life), eps_ticks=int(eps), spread_ticks=1, deadline_ticks_max=150, delay_ticks=10
                )
            case ["brokers", *names]:
                for name in names:
                    self.members[name] = CausalOrder(self.config, self.group(name))
                    self.members[name].floors[self.group(name)] = 0
            case ["subscriber", name, "of", *groups]:
                self.members[name] = CausalOrder(self.config)
                self.members[name].floors = {self.group(group): 0 for group in groups}
            case [name, "is", "in", *groups]:
                self.members[name].floors |= {self.group(group): 0 for group in groups}
            case [name, "sends", what, "to", *rest]:
                return self._send(name, what, rest)
            case [name, "hears", what, "at", clock]:
                frame, member = self.frames[what], self.members[name]
                settled = member.receive(frame, int(clock))
                return self._told(name, settled) or [f"{name} holds {what} back"]
            case [name, "is", "at", clock]:
                return self._told(name, self.members[name].pump(int(clock))) or [f"{name} still waits"]
            case _:
                raise ValueError(line)
        return []

    def _send(self, name: str, what: str, rest: list[str]) -> list[str]:
        at = rest.index("at")
        clock, member = int(rest[at + 1]), self.members[name]
        deadline = int(rest[-1]) if "by" in rest else member.earliest(clock) + self.config.life_ticks
        groups = tuple(sorted(self.group(group) for group in rest[:at]))
        frame = self.frames[what] = member.send(groups, deadline, what, clock)
        lines = [f"{what}: stamp {frame.stamp}, deadline {frame.deadline}, knows {self._past(frame)}"]
        return lines + [line for line in self._told(name, member.receive(frame, clock)) if "is not for" not in line]

    def _past(self, frame: CausalFrame) -> str:
        rows = [f"{self._name(s)}>{self._name(g)}:{t}" for (s, g), (t, _) in sorted(frame.past.items())]
        return " ".join(rows) or "nothing"

    def _name(self, group: int) -> str:
        return next(name for name, number in self.groups.items() if number == group)

    def _told(self, name: str, settled: list[SettledFrame]) -> list[str]:
        lines = []
        for each in settled:
            what = each.frame.body
            missed = [f"{self._name(sender)}'s of {stamp}" for (sender, stamp), _ in each.bypassed]
            match each.fate:
                case FrameFate.DELIVERED:
                    lines.append(f"{name} delivers {what}" + (f", without {', '.join(missed)}" if missed else ""))
                case FrameFate.NOT_MINE:
                    lines.append(f"{what} is not for {name}")
                case fate:
                    lines.append(f"{name} discards {what}: {fate.value}")
        return lines


def play(script: str) -> str:
    """The script with what really followed."""
    dialogue, lines = Dialogue(), []
    for line in script.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.startswith("$"):
            lines += [f"  {told}" for told in dialogue.command(line[1:])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(play(Path(sys.argv[1]).read_text()), end="")
