"""The exception tree: the type says who is to blame.

UnisonoError
├── MisuseError        the caller: a wrong argument, a wrong state, a file that is not what it should be
│   └── FormatError    a file or a text that cannot be read; carries the position
├── PeerError          the other end broke the protocol
├── TransportError     the network, a broker or a disk failed
├── PlanError          no stack keeps the promise asked for
├── DataLossError      what was asked for has been removed by retention
├── ForgottenError     a node's log is older than what it has told others
└── InvariantError     we are wrong: a machine found its own state broken and must stop
"""


class UnisonoError(Exception):
    """The root: catch it to catch everything unisono raises on purpose."""


class MisuseError(UnisonoError):
    """The caller asked for something that cannot be."""


class FormatError(MisuseError):
    """A file or text is broken; `where` names the place in words ("line 3", "row 17, column topic")."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class PeerError(UnisonoError):
    """The other end of a connection broke the protocol, or refused us; `code` is one of `model.limits.REASONS`."""

    def __init__(self, text: str, code: str = "protocol") -> None:
        super().__init__(text)
        self.code = code


class TransportError(UnisonoError):
    """The network, a broker or a disk failed."""


class PlanError(UnisonoError):
    """No stack of protocols keeps the promise that was asked for; the text says why."""


class DataLossError(UnisonoError):
    """The range asked for is no longer (fully) there: retention removed it."""


class ForgottenError(UnisonoError):
    """A node's log lacks what the node has told others: it was rolled back, cut or emptied."""


class InvariantError(UnisonoError):
    """A machine found its own state broken; its driver stops it, keeps its log and reports."""
