"""Spans of OpenTelemetry with its SDK: one trace from whoever publishes to the handler, through the order layer."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import unisono
from tests.runtime.test_session import take
from unisono.runtime.client import tracing

sdk = pytest.importorskip("opentelemetry.sdk.trace")


@pytest.fixture(scope="module")
def exporter() -> Any:
    """Where spans go; a process has one provider for ever."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    return memory


def test_one_trace_leads_from_the_publisher_to_the_handler(exporter: Any) -> None:
    from opentelemetry import trace

    exporter.clear()

    async def main() -> None:
        app, stop = unisono.App("memory://tracing"), asyncio.Event()
        seen: list[Any] = []

        @app.on("trades", where="px > 0")
        async def book(event: Any) -> None:
            seen.append((event.data, event.attributes, trace.get_current_span().get_span_context().trace_id))
            stop.set()

        async with unisono.connect("memory://tracing") as session:
            serving = asyncio.ensure_future(app.serve(stop, session))
            async with session.subscribe("trades") as stream:
                while not seen:
                    with trace.get_tracer("shop").start_as_current_span("order"):
                        await session.publish("trades", {"px": 1})
                    await take(stream, 1)
                    await asyncio.sleep(0.01)
            await serving
        ((data, attributes, trace_id),) = seen[:1]
        assert (data, attributes) == ({"px": 1}, {})
        spans = [span for span in exporter.get_finished_spans() if span.context.trace_id == trace_id]
        names = {span.name: span for span in spans}
        assert set(names) == {"order", "send trades", "receive trades", "process trades"}
        sent, process = names["send trades"], names["process trades"]
        assert sent.parent.span_id == names["order"].context.span_id
        assert process.parent.span_id == sent.context.span_id
        assert (sent.kind.name, process.kind.name) == ("PRODUCER", "CONSUMER")
        assert sent.attributes["unisono.outcome"] == "accepted"
        assert process.attributes["messaging.message.id"] == names["receive trades"].attributes["messaging.message.id"]

    asyncio.run(main())


def test_what_a_handler_raises_stands_in_its_span(exporter: Any) -> None:
    exporter.clear()

    async def main() -> None:
        app, stop = unisono.App("memory://tracing"), asyncio.Event()

        @app.on("trades")
        async def book(event: Any) -> None:
            raise ValueError("no such account")

        async with unisono.connect("memory://tracing") as session:
            serving = asyncio.ensure_future(app.serve(stop, session))
            while not serving.done():
                await (await session.publisher("trades")).send(1)
                await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match="no such account"):
                await serving
        (span, *_) = [span for span in exporter.get_finished_spans() if span.name == "process trades"]
        assert span.status.status_code.name == "ERROR"

    asyncio.run(main())


def test_without_the_sdk_nothing_is_carried() -> None:
    program = (
        "import asyncio, sys, unisono\n"
        "async def main():\n"
        "    async with unisono.connect('memory://x') as session, session.subscribe('t') as stream:\n"
        "        await session.publish('t', 1)\n"
        "        event = await anext(stream)\n"
        "        assert dict(event.event.attributes) == {}, event.event.attributes\n"
        "        assert session.tracing is None\n"
        "asyncio.run(main())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert tracing.SDK in sys.modules
