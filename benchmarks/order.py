"""What one order costs: raw brokers, unisono on top of them, and everything in one acknowledged stream.

2 topics, 2 publishers, 2 subscribers of both, 100 B payloads; at one site, and at three sites 20 ms apart (a user-space
delay). All clients are in this process; nats-servers and sequencer nodes are processes of their own with their logs on
disk (fdatasync before anything leaves a node). CPU seconds are those of all of them, without the delay proxies, which
stand for the network. First everybody publishes as fast as windows allow (messages per second and per CPU second, the
median round), then slowly (latency). Ratios and differences are those within a round, and of them the median.
Disagreement is the share of events in a pair that two subscribers saw in different orders. Bytes are those that all
processes hand to the kernel, logs included. By clock: how many beats and ticks all nodes send each other in a second,
idle and with events under way.

There are two raw baselines on NATS core, and both are told. `per_cpu_s_to_raw` compares with our own client, which
unisono itself stands on: it hands over what one read brought as a list, and has no task, queue or callback per message.
`per_cpu_s_to_nats_py` compares with nats-py, the client that most programs use.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from ordering.clients import (
    WAIT_S,
    Clients,
    Publish,
    embedded,
    jetstream,
    nats,
    nats_py_clients,
    ordered_clients,
    raw_clients,
    redis_clients,
)
from ordering.spent import cpu_s
from ordering.world import Broker, Place, missing_for_redis, world

from unisono.audit.inversions import count_inversions
from unisono.runtime.driver.loop import new_loop

PAYLOAD_BYTES = 100
BATCH = 256
SMALL_BATCH = 64
"""How many messages a publisher hands over at once. What both sides do per write, and unisono per request and commit,
is shared by a batch."""
SMALL = ", small batches"
SLOW_PER_S = 200.0
SLOW_S = 1.0
IDLE_S = 3.0
"""After so long nobody keeps clocks awake."""
COMMITS = "fdatasync as soon as the disk is free; what arrives meanwhile is the next commit"


def payload(publisher: int, number: int, at: int = 0) -> bytes:
    """100 bytes: who, which, when."""
    return b"%d %018d%020d" % (publisher, number, at) + bytes(PAYLOAD_BYTES - 40)


def written(pids: list[int]) -> int:
    """Bytes the processes have handed to the kernel by write calls, sockets and files alike."""
    return sum(int(Path(f"/proc/{pid}/io").read_text().split()[3]) for pid in [*pids, os.getpid()])


async def fast_round(clients: Clients, each: int, batch: int) -> dict[str, float]:
    """Publishers as fast as windows allow, until every subscriber has heard everything."""
    for ear in clients.ears:
        ear.heard, ear.expected = [], each * len(clients.publishers)
        ear.done.clear()

    async def publish(number: int, send: Publish) -> None:
        for start in range(0, each, batch):
            await send([(n % 2, payload(number, n)) for n in range(start, min(start + batch, each))])
            await asyncio.sleep(0)

    gc.collect()
    commits = await clients.commits()
    bytes_before, servers = written(clients.pids), [cpu_s(pid) for pid in clients.pids]
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(publish(number, send) for number, send in enumerate(clients.publishers)))
    async with asyncio.timeout(WAIT_S):
        for ear in clients.ears:
            await ear.done.wait()
            if ear.problem:
                raise RuntimeError(f"nothing may be missing: {ear.problem}")
        await clients.finish()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    spent = [cpu_s(pid) - before for pid, before in zip(clients.pids, servers)]
    server_cpu = sum(spent)
    messages = each * len(clients.publishers)
    made = await clients.commits() - commits
    streams = [[int(heard[0]) << 60 | int(heard[2:20]) for heard in ear.heard] for ear in clients.ears]
    if any(len(dict.fromkeys(stream)) != messages for stream in streams):
        raise RuntimeError("something was heard twice")
    inverted = count_inversions(streams[0], streams)
    return {
        "messages": messages,
        "batch": batch,
        "messages_per_s": messages / wall,
        "messages_per_cpu_s": messages / (cpu + server_cpu),
        "client_us_per_message": cpu / messages * 1e6,
        "broker_us_per_message": sum(spent[: clients.brokers]) / messages * 1e6,
        "node_us_per_message": sum(spent[clients.brokers :]) / messages * 1e6,
        "bytes_per_message": (written(clients.pids) - bytes_before) / messages,
        "disagreement_share": len(inverted.events) / messages,
        "messages_per_commit": messages / made if made else 0,
    }


async def slow_round(clients: Clients) -> list[list[int]]:
    """Latencies in microseconds per pair of publisher and subscriber, sorted, at a rate that troubles nobody."""
    each = round(SLOW_PER_S * SLOW_S)
    for ear in clients.ears:
        ear.heard, ear.late_us, ear.slow = [], [], True
        ear.expected = each * len(clients.publishers)
        ear.done.clear()

    async def publish(number: int, send: Publish) -> None:
        begin = time.monotonic()
        for n in range(each):
            await asyncio.sleep(max(0.0, begin + n / SLOW_PER_S - time.monotonic()))
            await send([(n % 2, payload(number, n, time.monotonic_ns()))])

    await asyncio.gather(*(publish(number, send) for number, send in enumerate(clients.publishers)))
    async with asyncio.timeout(WAIT_S):
        for ear in clients.ears:
            await ear.done.wait()
    paths: list[list[int]] = []
    for ear in clients.ears:
        ear.slow = False
        names = range(ord("0"), ord("0") + len(clients.publishers))
        paths += [sorted(late for who, late in ear.late_us if who == name) for name in names]
    return paths


async def beats(count: Callable[[], Awaitable[int]], clients: Clients) -> dict[str, float]:
    """How many beats and ticks nodes send each other in a second, all together: idle, and with events under way."""
    found = {}
    for name in ("beats_per_s_idle", "beats_per_s_busy"):
        await asyncio.sleep(IDLE_S)
        before, began = await count(), time.monotonic()
        if name == "beats_per_s_idle":
            await asyncio.sleep(IDLE_S)
        else:
            await slow_round(clients)
        found[name] = round((await count() - before) / (time.monotonic() - began), 1)
    return found


def percentile(paths: list[list[int]], share: float) -> float:
    """The mean over the paths of what that share of their latencies does not exceed."""
    return statistics.mean(path[min(len(path) - 1, int(len(path) * share))] for path in paths)


class Case(NamedTuple):
    broker: Broker
    each: int
    """Messages per publisher."""
    base: str = ""
    """The case it is compared with."""
    peer: str = ""
    """The same with the client that most programs use."""
    batch: int = BATCH


CASES = {
    "nats core, raw": Case("nats", 20_000),
    "nats core, raw, nats-py": Case("nats", 10_000, "nats core, raw"),
    "nats core, unisono total order": Case("nats", 20_000, "nats core, raw", "nats core, raw, nats-py"),
    "nats core, unisono by clock": Case("nats-clock", 20_000, "nats core, raw", "nats core, raw, nats-py"),
    f"nats core, raw{SMALL}": Case("nats", 20_000, batch=SMALL_BATCH),
    f"nats core, unisono total order{SMALL}": Case(
        "nats", 20_000, f"nats core, raw{SMALL}", "nats core, raw, nats-py", SMALL_BATCH
    ),
    "embedded broker, raw": Case("embedded", 20_000),
    "embedded broker, unisono total order": Case("embedded", 20_000, "embedded broker, raw", "nats core, raw, nats-py"),
    "one jetstream stream, synced before each acknowledgement": Case("jetstream", 1_000, "nats core, raw"),
    "one jetstream stream, synced every 2 minutes": Case("jetstream-2m", 5_000, "nats core, raw"),
    "one redis stream, synced before each acknowledgement": Case("redis", 5_000, "nats core, raw"),
    "one redis stream, synced every second": Case("redis-1s", 5_000, "nats core, raw"),
}


@asynccontextmanager
async def clients_of(case: str, place: Place) -> AsyncIterator[Clients]:
    if "unisono" in case:
        async with ordered_clients(place) as clients:
            yield clients
    elif "nats-py" in case:
        async with nats_py_clients(place) as clients:
            yield clients
    elif "redis" in case:
        async with redis_clients(place) as clients:
            yield clients
    else:
        make = jetstream if "jetstream" in case else nats if "nats" in case else embedded
        async with raw_clients(place, make, "jetstream" in case) as clients:
            yield clients


async def measure(sites: int, cases: list[str], scale: float, rounds: int) -> list[dict[str, Any]]:
    """Rounds of all cases take turns, so that a change of the machine's mood meets all of them."""
    async with AsyncExitStack() as stack:
        places = {broker: await stack.enter_async_context(world(broker, sites)) for broker in brokers_of(cases)}
        # The same people, whatever the batch: who listens too is paid for by everybody.
        clients = {
            case: await stack.enter_async_context(clients_of(case, places[CASES[case].broker]))
            for case in dict.fromkeys(people_of(case) for case in cases)
        }
        for each_of_them in clients.values():
            await fast_round(each_of_them, SMALL_BATCH * 4, SMALL_BATCH)  # connections warm up, topics are born
        taken: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
        for number in range(rounds):
            sys.stderr.write(f"{sites} site{'s' if sites > 1 else ''}, round {number + 1} of {rounds}\n")
            for case in cases:
                each, batch = CASES[case].each, CASES[case].batch
                taken[case].append(await fast_round(clients[people_of(case)], max(batch, int(each * scale)), batch))
        late: dict[str, list[list[list[int]]]] = {case: [] for case in clients}  # one by one: there are no batches
        for _ in range(rounds):
            for case, people in clients.items():
                late[case].append(await slow_round(people))
        beating = {case: await beats(people.clocks, people) for case, people in clients.items() if people.clocks}
        sync_us = await disk_sync_us()
    rows = []
    for case in cases:
        rates = [one["messages_per_cpu_s"] for one in taken[case]]
        middle = taken[case][rates.index(sorted(rates)[rounds // 2])]
        row: dict[str, Any] = {"case": case, "sites": f"{sites} site{'s' if sites > 1 else ''}"}
        row |= {name: round(value, 4 if "share" in name else 1) for name, value in middle.items()}
        base, peer = CASES[case].base, CASES[case].peer
        if base in cases:
            row["per_cpu_s_to_raw"] = round(statistics.median(ratios(taken[case], taken[base])), 3)
        for p in (50, 99) if case in late else ():
            row[f"latency_p{p}_us"] = round(statistics.median(percentiles(late[case], p)))
            if base in late:
                pairs = zip(percentiles(late[case], p), percentiles(late[base], p))
                row[f"added_p{p}_us"] = round(statistics.median(ours - theirs for ours, theirs in pairs))
        if peer in cases:
            row["per_cpu_s_to_nats_py"] = round(statistics.median(ratios(taken[case], taken[peer])), 3)
        if "unisono" in case:
            row["commits"] = COMMITS
        row |= beating.get(case, {})
        row |= {"sync_p50_us": sync_us, "load_1min": round(os.getloadavg()[0], 1)}
        rows.append(row)
    return rows


def people_of(case: str) -> str:
    """The case whose clients are used."""
    return case.removesuffix(SMALL)


def ratios(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> list[float]:
    """Round by round: neighbours in time meet the same mood of the machine."""
    return [mine["messages_per_cpu_s"] / other["messages_per_cpu_s"] for mine, other in zip(ours, theirs)]


def percentiles(rounds: list[list[list[int]]], p: int) -> list[float]:
    return [percentile(paths, p / 100) for paths in rounds]


async def disk_sync_us() -> int:
    """What a small append and fdatasync takes here and now, at the pace of slow rounds: nothing is durable sooner."""
    with TemporaryFile(dir="out", buffering=0) as file:
        taken: list[int] = []
        for _ in range(round(SLOW_PER_S)):
            await asyncio.sleep(1 / SLOW_PER_S)
            began = time.perf_counter_ns()
            file.write(bytes(200))
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter_ns() - began) // 1000)
        return round(statistics.median(taken))


def brokers_of(cases: list[str]) -> list[Broker]:
    return list(dict.fromkeys(CASES[case].broker for case in cases))


def run(
    scale: float = 1.0, sites: tuple[int, ...] = (1, 3), cases: tuple[str, ...] = tuple(CASES), rounds: int = 5
) -> list[dict[str, Any]]:
    missing = missing_for_redis()
    if missing:
        sys.stderr.write(f"no Redis stream among the peers: {' and '.join(missing)} not installed\n")
        cases = tuple(case for case in cases if "redis" not in case)
    rows = []
    for count in sites:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            rows += runner.run(measure(count, list(cases), scale, rounds))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--cases", nargs="+", default=[""], help="parts of the names of cases")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    chosen = tuple(case for case in CASES if any(part in case for part in asked.cases))
    if not chosen:
        parser.error(f"no case has {' or '.join(asked.cases)} in its name; there are: {'; '.join(CASES)}")
    for row in run(asked.scale, tuple(asked.sites), chosen, asked.rounds):
        sys.stdout.write(json.dumps(row) + "\n")
