"""The exception tree: the type says who is to blame.

UnisonoError
├── MisuseError        the caller: a wrong argument, a wrong state, a file that is not what it should be
│   └── FormatError    a file or a text that cannot be read; carries the position
├── PeerError          the other end broke the protocol
├── TransportError     the network, a broker or a disk failed
│   └── TurnedAwayError  a wrong token, no TLS: asking again would change nothing
├── PlanError          no stack keeps the promise asked for
├── DataLossError      what was asked for has been removed by retention
├── ForgottenError     a node's log is older than what it has told others
├── DivergedError      a replica's state is not that of the others
├── WithdrawnError     an operation on a replica was taken back, and has no stable answer
└── InvariantError     we are wrong: a machine found its own state broken and must stop
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_ASYNCIO = ("Connect call failed", "attempting to bind")


def said(error: OSError | UnicodeDecodeError) -> str:
    """What went wrong, in words: event loops put words of their own around the reason."""
    if isinstance(error, UnicodeDecodeError):
        return "not a text file"
    untrusted, of_tls = getattr(error, "verify_message", None), getattr(error, "reason", None)
    if isinstance(untrusted, str):
        return f"certificate verify failed: {untrusted}"
    if isinstance(of_tls, str):
        return of_tls.lower().replace("_", " ")
    if error.errno is not None and error.errno in errno.errorcode and any(words in str(error) for words in IN_ASYNCIO):
        return os.strerror(error.errno)
    return error.strerror or str(error) or "no answer"


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """What the system says of a write (a full disk) names no file: then it is this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


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


class TurnedAwayError(TransportError):
    """Somebody is there and does not let us in (a wrong token, no TLS): asking again would change nothing."""


class PlanError(UnisonoError):
    """No stack of protocols keeps the promise that was asked for; the text says why."""


class DataLossError(UnisonoError):
    """The range asked for is no longer (fully) there: retention removed it."""


class ForgottenError(UnisonoError):
    """A node's log lacks what the node has told others: it was rolled back, cut or emptied."""


class DivergedError(UnisonoError):
    """A replica's state is not that of the others after the same operations."""


class WithdrawnError(UnisonoError):
    """An operation has no stable answer; `is_definite`: it will never have an effect, else it may still have one."""

    def __init__(self, text: str, is_definite: bool) -> None:
        super().__init__(text)
        self.is_definite = is_definite


class InvariantError(UnisonoError):
    """A machine found its own state broken; its driver stops it, keeps its log and reports."""
