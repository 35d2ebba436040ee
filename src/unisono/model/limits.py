"""What one client may cost a node: the `[limits]` of a deployment, and the codes under which a node refuses more.

Every refusal carries one of `REASONS` and is counted under it; `unisono status --json` shows the counts. The page
docs/reference/limits.md explains each setting and each code.
"""

from typing import Annotated

from msgspec import Meta, Struct

from unisono.model.predicate import FILTER_COST_MAX

AtLeastOne = Annotated[int, Meta(ge=1, le=2**40)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one node, and of what each of its clients may use of it. A client is the party of one connection."""

    connections_max: AtLeastOne = 10_000
    """Accepted connections; a further one is refused before it has said anything. About 20 kB each."""
    connections_unknown_max: AtLeastOne = 256
    """Of these, those that have not introduced themselves; for a further one the oldest of them is closed."""
    hello_s: float = 5.0
    """How long a connection may take to introduce itself."""
    hello_bytes_max: AtLeastOne = 4_096
    """The longest frame before that."""
    hello_addresses_max: AtLeastOne = 8
    """Addresses one connection may speak for; a session has one."""
    frame_bytes_max: AtLeastOne = 8 << 20
    """The longest frame after the hello; a connection holds at most one that is not whole yet."""
    waiting_bytes_max: AtLeastOne = 64 << 20
    """What waits for one peer that does not read; beyond it the connection is closed."""
    bytes_max: AtLeastOne = 1 << 30
    """What all connections of a node hold together: frames that are not whole, letters that wait for their turn, and
    what is not read; at the bound the client that holds most is closed."""
    topics_max: AtLeastOne = 1_000_000
    """Topics created at one node, and topics of one subscription: an archive and a pattern may hear them all."""
    client_topics_max: AtLeastOne = 10_000
    """Topics that one client may have created; half of the channels that it may open at an embedded broker."""
    client_subscriptions_max: AtLeastOne = 10_000
    """Streams, publishers and subscriptions of one client."""
    client_watches_max: AtLeastOne = 100
    """Patterns that one client may watch."""
    client_requests_max: AtLeastOne = 1_000
    """Questions of one client that wait for their answer."""
    client_questions_per_s: AtLeastOne = 500
    """Questions per second to a node or an archive that are answered at once; what a client says beyond it waits."""
    filter_cost_max: AtLeastOne = FILTER_COST_MAX
    """Steps that normalising one filter may take (docs/reference/filters.md)."""


REASONS = {
    "address": "a client gives itself a name that is a node's, is not one, or is one too many",
    "address-taken": "somebody else is connected under this name, and the newcomer has not shown that session's secret",
    "advertisement": "an event outside what its publisher has advertised to an overlay",
    "bytes": "too much waits for a peer that does not read, or all together hold too much and this one most",
    "connections": "the node has as many connections as it takes",
    "control": "only nodes publish control",
    "deployment": "the party belongs to another deployment, or has a file that differs in what all must agree on",
    "event": "the event is too large, or no filter could look at it",
    "filter": "the filter is not one, or not in its normal form",
    "filter-cost": "normalising the filter takes too many steps",
    "forged": "a message in somebody else's name",
    "forgotten": "the session was away for too long: connect again with a new one",
    "frame-size": "the frame is longer than allowed",
    "hello-first": "the first message is not a hello, or a second one is",
    "hello-late": "the connection has not introduced itself in time, or others needed its place",
    "hello-size": "the hello is longer than allowed",
    "letters": "too many messages in one frame",
    "protocol": "what was said cannot be read, or cannot be said there",
    "publications": "too many events of this publisher wait already",
    "range": "a number is outside its range",
    "requests": "too many questions of this client wait for their answer",
    "right": "the client's token does not allow it: see [[rights]] of the deployment",
    "subscriptions": "too many streams, publishers and subscriptions of this client",
    "token": "the token was not proven, or is not the one for this",
    "topics": "too many topics of this client, or of this node",
    "version": "no version of the wire protocol is spoken by both",
    "watches": "too many patterns watched by this client",
}
"""Every code a refusal may carry."""

FINAL = frozenset(("deployment", "token", "version"))
"""Codes of what stays as it is until a person changes something: trying again is of no use."""
