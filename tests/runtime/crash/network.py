"""The network of a crash run: every way from one party to another passes a proxy of its own.

So each can be made slow, held in one direction or both, or broken, while the others go on.
"""

from unisono.model.time import Micros
from unisono.runtime.tools.delay import DelayProxy


class Network:
    """The proxies of one run, in the loop of its harness."""

    def __init__(self) -> None:
        self._ways: dict[tuple[str, str], DelayProxy] = {}

    async def way(self, dialer: str, target: str, port: int) -> int:
        """The port at which `dialer` finds `target`."""
        if (dialer, target) not in self._ways:
            proxy = self._ways[dialer, target] = DelayProxy(Micros(0))
            await proxy.start(("127.0.0.1", port))
        return self._ways[dialer, target].port

    def between(self, dialer: str, target: str) -> DelayProxy:
        return self._ways[dialer, target]

    def ways(self) -> list[tuple[str, str]]:
        return list(self._ways)

    def ways_of(self, party: str) -> list[DelayProxy]:
        """All that party dials, and all who dial it."""
        return [proxy for pair, proxy in self._ways.items() if party in pair]

    async def stop(self) -> None:
        for proxy in self._ways.values():
            await proxy.stop()
