"""What an experiment is: options, a run that returns rows, and the paper's numbers beside ours.

    class SizeOptions(Struct, frozen=True):
        clients: Annotated[int, Meta(description="how many clients subscribe")] = 1000
        seed: int = 0

    def run(options: SizeOptions) -> list[ResultRow]:
        return [ResultRow({"topics": 10}, ours={"entries": 3.2}, paper={"entries": 3})]

    EXPERIMENT = Experiment("Size of a timestamp", "paper 007, figure 5", SizeOptions, run, Figure("topics", "entries"))

Options become flags of `unisono experiment run NAME`, with their types, bounds, defaults and descriptions. Those that
contradict each other are refused in `__post_init__` by `raise contradiction(self, why, "clients", "topics")`.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from unisono.errors import MisuseError

Value = str | int | float | bool


class ResultRow(Struct, frozen=True):
    """One point: the setting, what we measured, and what the paper says where it says something."""

    setting: dict[str, Value]
    ours: dict[str, float]
    paper: dict[str, float] = {}


class Figure(Struct, frozen=True):
    """How to draw the rows: `measure` over the setting `x`, one line per value of the setting `series`."""

    x: str
    measure: str
    series: str | None = None
    log_x: bool = False
    log_y: bool = False


class Experiment(Struct, frozen=True):
    """A figure or a table of a paper that can be run again."""

    title: str
    source: str
    """Paper and section, figure or table."""
    options: type[Struct]
    run: Callable[[Any], list[ResultRow]]
    """Takes an instance of `options`. Everything random comes from its seed."""
    figure: Figure | None = None
    as_json: Callable[[list[ResultRow]], Any] | None = None
    """What `run NAME --json` prints, where that is not the whole outcome."""
    parts: Callable[[Any], list[Any]] | None = None
    """Smaller options whose rows, one after the other, are those of the given ones: they can run beside each other."""


class Outcome(Struct, frozen=True):
    """What a run is kept as: `experiments/<name>.json`."""

    experiment: str
    title: str
    source: str
    options: dict[str, Any]
    seconds: float
    rows: list[ResultRow]


def flag(option: str) -> str:
    """`per_client` as users write it: `--per-client`."""
    return f"--{option.replace('_', '-')}"


def contradiction(options: Struct, why: str, *names: str) -> MisuseError:
    """The error of options that do not go together; a line with their flags and values."""
    given = " with ".join(f"{flag(name)} {getattr(options, name)}" for name in names)
    return MisuseError(f"{given}: {why}")
