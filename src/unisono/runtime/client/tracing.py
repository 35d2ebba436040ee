"""OpenTelemetry, if the program uses its SDK: spans of publishing, receiving and handling, and their context, that goes
through the order layer.

The context of a publication travels in an attribute that nobody is shown, as W3C trace context. A program that has not
imported the SDK pays nothing, and its events carry nothing.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from unisono.model.content import TRACE
from unisono.model.event import Event, Scalar

SDK = "opentelemetry.sdk.trace"


class EventTracing(Protocol):
    """What a session tells of its events."""

    def publishing(self, topic: str) -> AbstractContextManager[Any]: ...

    def carried(self) -> str: ...

    def received(self, event: Event, number: int, late: bool) -> None: ...

    def handling(self, event: Event, handler: str) -> AbstractContextManager[Any]: ...


def event_tracing() -> EventTracing | None:
    """Spans, if the program has the SDK; asked once by a session, when it is opened."""
    return _Spans() if SDK in sys.modules else None


class _Spans:
    """Messaging spans by the conventions of OpenTelemetry."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("unisono")

    @contextmanager
    def publishing(self, topic: str) -> Iterator[Any]:
        """Around a publication, until its outcome is known."""
        kind, about = self._trace.SpanKind.PRODUCER, _about("send", topic)
        with self._tracer.start_as_current_span(f"send {topic}", kind=kind, attributes=about) as span:
            yield span

    def carried(self) -> str:
        """The context that holds now, as an attribute carries it; empty if nothing is traced."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent", "")

    def received(self, event: Event, number: int, late: bool) -> None:
        """A span for the moment at which an event has its place in the order and is handed over."""
        about = {**_about("receive", event.topic, event), "unisono.number": number, "unisono.late": late}
        self._tracer.start_span(
            f"receive {event.topic}",
            context=self._context(event.attributes),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=about,
        ).end()

    @contextmanager
    def handling(self, event: Event, handler: str) -> Iterator[Any]:
        """Around a handler of an app; what it raises is noted."""
        about = {**_about("process", event.topic, event), "code.function.name": handler}
        with self._tracer.start_as_current_span(
            f"process {event.topic}",
            context=self._context(event.attributes),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=about,
        ) as span:
            yield span

    def _context(self, attributes: Mapping[str, Scalar]) -> Any:
        return self._propagator.extract({"traceparent": str(attributes.get(TRACE, ""))})


def _about(kind: str, topic: str, event: Event | None = None) -> dict[str, str | int | bool]:
    name = {"send": "publish", "receive": "deliver", "process": "handle"}[kind]
    about: dict[str, str | int | bool] = {
        "messaging.system": "unisono",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
    if event is not None:
        about["messaging.message.id"] = event.id
    return about
