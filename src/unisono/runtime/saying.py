"""What a process says of itself while it runs: lines for people, or one JSON object a line for machines.

Whoever logs a change of state adds what a machine would look for (`say`); everything else are ordinary log records.
Each line has the deployment and the node.

    2026-03-01T12:00:00.123+0000 WARNING trading/eu-1 peer us-1 is down: connection lost
    {"at":"2026-03-01T12:00:00.123+0000","level":"warning","deployment":"trading","node":"eu-1","event":"peer-down", …}
"""

import logging
import time
from typing import Literal

import msgspec

Shape = Literal["text", "json"]
Loudness = Literal["debug", "info", "warning", "error"]


def say(logger: logging.Logger, level: int, text: str, /, **fields: object) -> None:
    """Logs a line with fields of its own; `event` says in one word what happened."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", text, extra={"fields": fields})


class LogLines(logging.Formatter):
    """A record as a line."""

    def __init__(self, deployment: str, node: str, shape: Shape) -> None:
        super().__init__()
        self._deployment, self._node, self._shape = deployment, node, shape

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        at = f"{moment}.{int(record.msecs):03d}+0000"
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if self._shape == "text":
            return f"{at} {record.levelname} {self._deployment}/{self._node} {text}"
        line = {"at": at, "level": record.levelname.lower(), "deployment": self._deployment, "node": self._node}
        fields = getattr(record, "fields", {})
        return msgspec.json.encode({**line, **fields, "text": text, "logger": record.name}).decode()


def begin_saying(deployment: str, node: str, level: Loudness, shape: Shape) -> None:
    """From now on the process logs to stderr, so."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines(deployment, node, shape))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
