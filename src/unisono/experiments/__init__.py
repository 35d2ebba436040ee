"""The papers' figures, run again. One module per experiment, with an `EXPERIMENT`, and one line in `table`."""

from unisono.experiments.experiment import Experiment, Figure, Outcome, ResultRow
from unisono.experiments.table import EXPERIMENTS, find

__all__ = ["EXPERIMENTS", "Experiment", "Figure", "Outcome", "ResultRow", "find"]
