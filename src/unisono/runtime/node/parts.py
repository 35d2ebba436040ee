"""The parts of a running node, as those files see them that the node itself imports."""

from typing import TYPE_CHECKING, Protocol

from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.protocols.naming.topic_names import TopicNames
from unisono.runtime.links.links import Links
from unisono.runtime.node.clients import Clients
from unisono.runtime.node.content import ContentRole
from unisono.runtime.node.lookout import Lookout
from unisono.runtime.node.placing import Placing
from unisono.runtime.node.sequencer import SequencerRole

if TYPE_CHECKING:
    from unisono.runtime.archiving.archivist import Archivist  # it needs Arrow


class NodeParts(Protocol):
    """What a node is made of. A part is None where its roles do not need it, or before it has started."""

    @property
    def me(self) -> Address: ...

    @property
    def deployment(self) -> Deployment: ...

    @property
    def links(self) -> Links: ...

    @property
    def clients(self) -> Clients: ...

    @property
    def lookout(self) -> Lookout: ...

    @property
    def sequencer(self) -> SequencerRole | None: ...

    @property
    def overlay(self) -> ContentRole | None: ...

    @property
    def archivist(self) -> "Archivist | None": ...

    @property
    def placing(self) -> Placing | None: ...

    @property
    def topic_names(self) -> TopicNames | None: ...
