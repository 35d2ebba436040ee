"""`unisono experiment list | run NAME [options] | all`: a paper's figure as a table, a picture and a JSON file."""

import inspect
import json
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, cast, get_type_hints

import msgspec
import typer
from msgspec import NODEFAULT, Meta, Struct, structs
from rich.progress import Progress
from rich.table import Table

from unisono.cli.measuring.simulate import parse_seeds
from unisono.cli.screen import screen
from unisono.errors import MisuseError
from unisono.experiments import EXPERIMENTS, Experiment, Outcome, ResultRow, find
from unisono.experiments.experiment import flag

experiment = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

Keep = Annotated[Path, typer.Option(help="Where the JSON and the picture go.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seeds = Annotated[str | None, typer.Option(help="Repeat for these seeds and print means: 7, or 0..199, or 1,5,9.")]
On = Annotated[str, typer.Option(help="Where: local, spark, spark://host:port or sc://host:port.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes to share the parts of an experiment that has parts.")]
KEPT_IN = Path("experiments")


@experiment.command("list")
def list_them(as_json: AsJson = False) -> None:
    """The experiments, with their source and options.

    Example: unisono experiment list --json
    """
    found = {name: find(name) for name in EXPERIMENTS}
    if as_json:
        shape = {
            name: {"title": e.title, "source": e.source, "options": msgspec.to_builtins(e.options())}
            for name, e in found.items()
        }
        print(json.dumps(shape))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for column in ("what", "source", "options"):
        table.add_column(column)
    for name, e in found.items():
        table.add_row(name, e.title, e.source, " ".join(map(flag, e.options.__struct_fields__)))
    screen().print(table)


@experiment.command(
    "run", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def run_one(context: typer.Context, name: str) -> None:
    """Run one; `unisono experiment run NAME --help` shows its options.

    Example: unisono experiment run sequencer/timestamp-size --seeds 0..9
    """
    if name.startswith("-"):
        raise MisuseError(f"name an experiment first: unisono experiment run NAME {name}")
    chosen = find(name)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=f"{chosen.title} ({chosen.source}).")(command_of(name, chosen))
    app(context.args, prog_name=f"unisono experiment run {name}")


@experiment.command("all")
def run_all(out: Keep = KEPT_IN, as_json: AsJson = False, jobs: Jobs = 1) -> None:
    """Run every experiment with its default options.

    Example: unisono experiment all --jobs 2
    """
    outcomes = []
    for name in EXPERIMENTS:
        chosen = find(name)
        typer.echo(f"{name} …", err=True)
        outcome = perform(name, chosen, chosen.options(), jobs)
        keep(outcome, chosen, out)
        outcomes.append(outcome)
        if not as_json:
            show(outcome)
    if as_json:
        print(json.dumps(msgspec.to_builtins(outcomes)))


def command_of(name: str, chosen: Experiment) -> Any:
    """A function whose signature typer reads as the flags of this experiment's options."""

    def command(out: Path, as_json: bool, seeds: str | None, on: str, jobs: int, **values: Any) -> None:
        options = checked(chosen.options, values)
        if jobs > 1 and (seeds is not None or on != "local"):
            raise MisuseError(f"--jobs {jobs} with {'--on' if seeds is None else '--seeds'}: jobs share one local run")
        if seeds is None and on == "local":
            outcome = perform(name, chosen, options, jobs)
        else:
            outcome = perform_seeds(name, chosen, options, seeds, on, out)
        keep(outcome, chosen, out)
        if as_json:
            shape = outcome if chosen.as_json is None else chosen.as_json(outcome.rows)
            print(json.dumps(msgspec.to_builtins(shape)))
        else:
            show(outcome)

    parameters = [
        inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=KEPT_IN, annotation=Keep),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
        inspect.Parameter("seeds", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Seeds),
        inspect.Parameter("on", inspect.Parameter.KEYWORD_ONLY, default="local", annotation=On),
        inspect.Parameter("jobs", inspect.Parameter.KEYWORD_ONLY, default=1, annotation=Jobs),
        *parameters_of(chosen.options),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def checked(options: type[Struct], values: dict[str, Any]) -> Struct:
    """The options, within the bounds they name; raises MisuseError with the flag that is not, or with those that
    contradict each other."""
    try:
        return msgspec.convert(values, options)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        raise MisuseError(f"{flag(place.rstrip('`'))}: {problem}") from None


def parameters_of(options: type[Struct]) -> list[inspect.Parameter]:
    hints = get_type_hints(options, include_extras=True)
    parameters = []
    for field in msgspec.structs.fields(options):
        if field.default is NODEFAULT:
            raise MisuseError(f"option {field.name} of {options.__qualname__} needs a default")
        metadata = getattr(hints[field.name], "__metadata__", ())
        text = next((m.description for m in metadata if isinstance(m, Meta) and m.description), None)
        kind = getattr(hints[field.name], "__origin__", hints[field.name]) if metadata else hints[field.name]
        option = typer.Option(flag(field.name), help=text)
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[kind, option]
            )
        )
    return parameters


def perform(name: str, chosen: Experiment, options: Struct, jobs: int = 1) -> Outcome:
    """Runs it, part by part where it has parts, in `jobs` processes, and shows how far it is."""
    started = time.perf_counter()
    parts = [options] if chosen.parts is None else chosen.parts(options)
    errors = screen(stderr=True)
    with ExitStack() as stack:
        run: Iterable[list[ResultRow]] = map(chosen.run, parts)
        if jobs > 1 and len(parts) > 1:
            run = stack.enter_context(ProcessPoolExecutor(min(jobs, len(parts)))).map(chosen.run, parts)
        if errors.is_terminal and len(parts) > 1:
            progress = stack.enter_context(Progress(console=errors, transient=True))
            run = progress.track(run, total=len(parts), description=name)
        rows = [row for some in run for row in some]
    seconds = round(time.perf_counter() - started, 3)
    return Outcome(name, chosen.title, chosen.source, msgspec.to_builtins(options), seconds, rows)


def perform_seeds(
    name: str, chosen: Experiment, options: Struct, seeds: str | None, on: str, directory: Path
) -> Outcome:
    """The same for many seeds, here or on Spark, which keeps what each gave in `<directory>/<name>.sweep/`."""
    if "seed" not in options.__struct_fields__:
        raise MisuseError(f"{name} draws nothing by chance: it has no seed")
    one: int = cast(Any, options).seed
    if seeds is not None and one != cast(Any, chosen.options()).seed:
        raise MisuseError(f"--seed {one} with --seeds {seeds}: one or the other")
    chosen_seeds = parse_seeds(seeds) if seeds is not None else [one]
    started = time.perf_counter()
    work = SeedWork(name, msgspec.json.encode(options))
    if on == "local":
        results = [work(seed) for seed in chosen_seeds]
    else:
        from unisono.spark.session import session_on  # Spark is an extra, and slow to import
        from unisono.spark.sweeps import sweep, sweep_key

        shape = {**msgspec.to_builtins(options), "seed": 0}
        folder = directory / f"{name}.sweep" / sweep_key(name, json.dumps(shape, sort_keys=True))
        spark = session_on(on, f"unisono experiment {name}")
        results = [row.result for row in sweep(spark, work, chosen_seeds, folder).collect()]
    rows = mean_rows([msgspec.json.decode(result, type=list[ResultRow]) for result in results])
    seconds = round(time.perf_counter() - started, 3)
    ran = {**msgspec.to_builtins(options), "seed": f"{len(chosen_seeds)} seeds: {seeds or chosen_seeds[0]}"}
    return Outcome(name, chosen.title, chosen.source, ran, seconds, rows)


class SeedWork(Struct, frozen=True):
    """One run of an experiment, as a function of the seed that workers can be sent."""

    name: str
    options: bytes

    def __call__(self, seed: int) -> str:
        chosen = find(self.name)
        options = structs.replace(msgspec.json.decode(self.options, type=chosen.options), seed=seed)
        return msgspec.json.encode(chosen.run(options)).decode()


def mean_rows(runs: list[list[ResultRow]]) -> list[ResultRow]:
    """Rows of equal setting as one, with the mean of every measure; in the order of first sight."""
    found: dict[str, list[ResultRow]] = {}
    for rows in runs:
        for row in rows:
            found.setdefault(json.dumps(row.setting, sort_keys=True), []).append(row)
    return [
        ResultRow(
            same[0].setting,
            {m: fmean(row.ours[m] for row in same if m in row.ours) for m in unique(row.ours for row in same)},
            same[0].paper,
        )
        for same in found.values()
    ]


def keep(outcome: Outcome, chosen: Experiment, directory: Path) -> None:
    """`<directory>/<name>.json`, and a picture beside it where matplotlib is installed."""
    path = directory / f"{outcome.experiment}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1) + b"\n")
    if chosen.figure is not None and find_spec("matplotlib") is not None:
        from unisono.experiments import picture  # matplotlib is an extra, and slow to import

        picture.draw(outcome, chosen.figure, path.with_suffix(".png"))


def show(outcome: Outcome) -> None:
    console = screen()
    console.print(f"{outcome.title} ({outcome.source}), {outcome.seconds} s, options {outcome.options}")
    table = Table(box=None, pad_edge=False)
    settings = unique(row.setting for row in outcome.rows)
    ours, papers = unique(row.ours for row in outcome.rows), unique(row.paper for row in outcome.rows)
    for setting in settings:
        table.add_column(setting)
    for measure in unique([ours, papers]):
        table.add_column(measure, justify="right")
        if measure in papers:
            table.add_column("paper", justify="right")
    for row in outcome.rows:
        table.add_row(*cells(row, list(settings), list(unique([ours, papers])), list(papers)))
    console.print(table)


def unique(many: Any) -> dict[str, None]:
    """The keys of all, each once, in the order of first sight."""
    return {key: None for one in many for key in one}


def cells(row: ResultRow, settings: list[str], measures: list[str], papers: list[str]) -> list[str]:
    texts = [str(row.setting.get(setting, "")) for setting in settings]
    for measure in measures:
        texts.append(number(row.ours.get(measure)))
        if measure in papers:
            texts.append(number(row.paper.get(measure)))
    return texts


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
