"""Kernels that numba compiles once per process: never at import, in the background or when somebody waits for them.

A room with inner loops names a function that compiles them and asks `ready` before each use. Until it answers, and
wherever numba is missing, the same work is done without: results are identical, so nobody else can tell.
"""

from collections.abc import Callable
from threading import Lock, Thread
from typing import Generic, TypeVar

__all__ = ["Kernel", "Thread"]

T = TypeVar("T")


class Kernel(Generic[T]):
    """What `compile` returns, made at most once; None from it means that numba is not installed."""

    def __init__(self, name: str, compile: Callable[[], T | None]) -> None:
        self._name, self._compile = name, compile
        self._made: T | None = None
        self._missing = False
        self._making = Lock()

    def ready(self) -> T | None:
        """The kernel if it is there already; never waits."""
        return self._made

    def wait(self) -> T | None:
        """The kernel, compiled now if need be; None without numba."""
        with self._making:
            if self._made is None and not self._missing:
                self._made = self._compile()
                self._missing = self._made is None
            return self._made

    def warm_up(self) -> Thread:
        """Compiles in the background; join the thread to wait for it."""
        thread = Thread(target=self.wait, name=f"unisono-{self._name}-kernel", daemon=True)
        thread.start()
        return thread
