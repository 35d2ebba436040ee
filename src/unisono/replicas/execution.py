"""One operation of ours, from its first answer to its last."""

import asyncio
from collections.abc import AsyncIterator

from unisono.errors import UnisonoError
from unisono.replicas.operation import SqlAnswer


class Execution:
    """What became of an operation: `answer` is tentative until `is_stable`.

    execution = await replica.execute("UPDATE stock SET n = n - 1 WHERE id = ?", (7,))
    answer = await execution.stable()
    """

    def __init__(self) -> None:
        self.answer: SqlAnswer | None = None
        """None while the operation waits to be applied for the first time."""
        self.withdrawals = 0
        """How often a tentative answer was replaced by another one."""
        self._final: asyncio.Future[SqlAnswer] = asyncio.get_running_loop().create_future()
        self._final.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._news = asyncio.Event()

    @property
    def is_stable(self) -> bool:
        """The answer is the one that every replica has."""
        return self._final.done() and self._final.exception() is None

    async def stable(self) -> SqlAnswer:
        """The answer that every replica has. WithdrawnError: the operation has none."""
        return await asyncio.shield(self._final)

    async def answers(self) -> AsyncIterator[SqlAnswer]:
        """The answer there is, and each that replaces it; the last one is stable."""
        told: SqlAnswer | None = None
        while True:
            self._news.clear()
            ends = self._final.done()
            if ends:
                self.answer = self._final.result()
            if self.answer is not None and self.answer != told:
                told = self.answer
                yield told
            if ends:
                return
            await self._news.wait()

    def change(self, answer: SqlAnswer) -> None:
        """Another tentative answer."""
        self.withdrawals += self.answer is not None
        self.answer = answer
        self._news.set()

    def settle(self, answer: SqlAnswer) -> None:
        if self._final.done():
            return
        if self.answer is not None and self.answer != answer:
            self.withdrawals += 1
        self.answer = answer
        self._final.set_result(answer)
        self._news.set()

    def fail(self, error: UnisonoError) -> None:
        if not self._final.done():
            self._final.set_exception(error)
            self._news.set()
