"""What people ask a node about itself and its topics: who else is there, how it is, which topics match."""

import asyncio
from collections.abc import Callable

from unisono.model.ids import Address
from unisono.protocols.naming.topic_names import TopicNames
from unisono.runtime.links import control
from unisono.runtime.links.links import Links
from unisono.runtime.links.pace import LISTED

AboutNode = control.AskDeployment | control.AskReport | control.Survey
Told = control.RunningDeployment | control.NodeReport | control.Surveyed


class NodeQuestions:
    """Answers cost more than questions: who asks the same many times in one turn of the loop is answered once."""

    def __init__(
        self,
        links: Links,
        names: Callable[[], TopicNames | None],
        look_up: Callable[[type | str], Told],
        say: Callable[[Address, Told], None],
    ) -> None:
        """`look_up` finds the answer to a kind of question, or to the pattern of a survey; `say` tells it."""
        self._links, self._names, self._look_up, self._say = links, names, look_up, say
        self._asked: dict[tuple[Address, type | str], None] = {}  # in this turn

    def charge(self, client: Address) -> None:
        """For an answer that goes through all topics that are at home here."""
        names = self._names()
        self._links.charge(client, 1 + len(names.mine) // LISTED if names is not None else 1)

    def answer_soon(self, message: AboutNode) -> None:
        self.charge(message.client)
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._answer)
        about = message.pattern if isinstance(message, control.Survey) else type(message)
        self._asked[message.client, about] = None

    def _answer(self) -> None:
        asked, self._asked = self._asked, {}
        answers: dict[type | str, Told] = {}
        for client, about in asked:
            if about not in answers:
                answers[about] = self._look_up(about)
            self._say(client, answers[about])
