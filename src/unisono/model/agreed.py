"""What all parties of a deployment must have alike, since it decides what is heard, and in which order.

Parties that were given different files would disagree in silence: with another grid an event goes to a cell that its
subscribers do not listen to; with another order its publisher does not wait for causes. They say these settings when
they meet, and whoever has another one is turned away, and told which.
"""

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from unisono.model.deployment import Deployment
from unisono.model.homes import sequencers

GRIDS = "grids"


def agreed(deployment: Deployment) -> dict[str, str]:
    """Setting -> its value, as it is shown. One for every setting that decides something in this kind of deployment."""
    settings: dict[str, object] = {"kind": deployment.kind}
    if sequencers(deployment):
        how = deployment.sequencing
        names = ("by", "order", "tolerance_ms") if how.by == "clock" else ("by", "order", "early", "encoding")
        settings |= {f"sequencing.{name}": getattr(how, name) for name in names}
    shown = {name: _shown(value) for name, value in settings.items()}
    grids = [(topic.name, _shown(topic.grid)) for topic in deployment.topics if topic.grid]
    return shown | {GRIDS: sha256(_shown(sorted(grids)).encode()).hexdigest()[:12] if grids else ""}


def _shown(value: object) -> str:
    return msgspec.json.encode(_alike(msgspec.to_builtins(value))).decode()


def _alike(value: object) -> object:
    """100 in a program is the 100.0 of a file."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list() | tuple():
            return [_alike(each) for each in value]
        case dict():
            return {name: _alike(each) for name, each in value.items()}
        case _:
            return value


def disagreement(theirs: Mapping[str, str], ours: Mapping[str, str], me: str) -> str | None:
    """What is different, for whoever comes with these; None if nothing is that both speak of."""
    for name, value in theirs.items():
        if name in ours and value != ours[name]:
            if name == GRIDS:
                return f"the grids of topics are others in the file of {me}: take the same file"
            return f"{name} is {value} here and {ours[name]} at {me}: take the same file"
    return None
