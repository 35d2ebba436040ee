"""The papers' figures, run again. One module per experiment, with an `EXPERIMENT`; one line here makes it known."""

from importlib import import_module

from unisono.errors import MisuseError
from unisono.experiments.experiment import Experiment, Figure, Row

__all__ = ["EXPERIMENTS", "Experiment", "Figure", "Row", "experiment"]

EXPERIMENTS: dict[str, str] = {
    # name on the command line: module beneath this package
    "sequencer/group-size": "group_size",
    "coded/success-model": "coded_success",
}


def experiment(name: str) -> Experiment:
    """The experiment of that name; only its own module is imported."""
    if name not in EXPERIMENTS:
        raise MisuseError(f"no experiment {name!r}; there are: {', '.join(EXPERIMENTS) or 'none yet'}")
    found: Experiment = import_module(f"{__name__}.{EXPERIMENTS[name]}").EXPERIMENT
    return found
