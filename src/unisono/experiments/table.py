"""Which experiments there are: one line each."""

from importlib import import_module

from unisono.errors import MisuseError
from unisono.experiments.experiment import Experiment

EXPERIMENTS: dict[str, str] = {
    # name on the command line: module beneath this package
    "sequencer/timestamp-size": "sequencer_timestamp_size",
    "sequencer/wan-latency": "sequencer_wan_latency",
    "sequencer/popularity-change": "sequencer_popularity_change",
    "coded/success-model": "coded_success",
    "coded/redundancy": "coded_redundancy",
    "coded/air-traffic": "coded_air_traffic",
    "overlay/costs": "overlay_costs",
    "regions/latency": "regions_latency",
    "regions/psi": "regions_psi",
    "regions/resources": "regions_resources",
    "overlay/covering": "overlay_covering",
    "content/grid": "content_grid",
    "replicas/rollbacks": "replicas_rollbacks",
    "replicas/latency": "replicas_latency",
    "replicas/buffer": "replicas_buffer",
    "causal/delivery": "causal_delivery",
    "causal/groups": "causal_groups",
    "causal/mobility": "causal_mobility",
}


def find(name: str) -> Experiment:
    """The experiment of that name; only its own module is imported."""
    if name not in EXPERIMENTS:
        raise MisuseError(f"no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    found: Experiment = import_module(f"unisono.experiments.{EXPERIMENTS[name]}").EXPERIMENT
    return found
