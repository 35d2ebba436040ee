"""Draws an outcome with matplotlib: our points as lines, the paper's as crosses of the same colour."""

from pathlib import Path

from matplotlib.figure import Figure as Canvas

from unisono.experiments.experiment import Figure, Outcome, ResultRow


def draw(outcome: Outcome, figure: Figure, path: Path) -> None:
    """Writes a PNG."""
    lines: dict[str, list[ResultRow]] = {}
    for row in outcome.rows:
        if figure.measure in row.ours and figure.x in row.setting:
            lines.setdefault(str(row.setting.get(figure.series or "", "")), []).append(row)
    canvas = Canvas(figsize=(7, 4.5), layout="constrained")
    axes = canvas.subplots()
    for label, rows in lines.items():
        name = f"{figure.series} {label}" if figure.series else "ours"
        (line,) = axes.plot(
            [row.setting[figure.x] for row in rows],
            [row.ours[figure.measure] for row in rows],
            marker=".",
            label=name,
        )
        told = [row for row in rows if figure.measure in row.paper]
        if told:
            axes.plot(
                [row.setting[figure.x] for row in told],
                [row.paper[figure.measure] for row in told],
                "x",
                color=line.get_color(),
                label=f"{name}, paper" if figure.series else "paper",
            )
    axes.set_title(f"{outcome.title}\n{outcome.source}", fontsize="small", wrap=True)
    axes.set(xlabel=figure.x, ylabel=figure.measure)
    if figure.log_x:
        axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log")
    if lines:
        axes.legend()
    canvas.savefig(path, dpi=120)
