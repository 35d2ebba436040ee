"""Which experiments there are: one line each."""

from importlib import import_module

from unisono.errors import MisuseError
from unisono.experiments.experiment import Experiment

EXPERIMENTS: dict[str, str] = {
    # name on the command line: module beneath this package
    "sequencer/timestamp-size": "sequencer.timestamp_size",
    "sequencer/wan-latency": "sequencer.wan_latency",
    "sequencer/popularity-change": "sequencer.popularity_change",
    "coded/success-model": "coded.success",
    "coded/redundancy": "coded.redundancy",
    "coded/air-traffic": "coded.air_traffic",
    "overlay/costs": "overlay.costs",
    "regions/latency": "regions.latency",
    "regions/psi": "regions.psi",
    "regions/resources": "regions.resources",
    "overlay/covering": "overlay.covering",
    "content/grid": "content.grid",
    "replicas/rollbacks": "replicas.rollbacks",
    "replicas/discards": "replicas.discards",
    "replicas/latency": "replicas.latency",
    "replicas/buffer": "replicas.buffer",
    "causal/delivery": "causal.delivery",
    "causal/groups": "causal.groups",
    "causal/mobility": "causal.mobility",
}


def find(name: str) -> Experiment:
    """The experiment of that name; only its own module is imported."""
    if name not in EXPERIMENTS:
        raise MisuseError(f"no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    found: Experiment = import_module(f"unisono.experiments.{EXPERIMENTS[name]}").EXPERIMENT
    return found
