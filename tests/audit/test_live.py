"""Judged part by part, while it grows, a log has the verdicts of the whole: without late rows, at every cut."""

from collections import Counter
from random import Random

import pytest

from unisono.audit import judge
from unisono.audit.live import BatchReport, LiveAudit, LiveLimits, decode_state, encode_state
from unisono.audit.live.carried import LIVE
from unisono.model.journal import Header, Journal, Record


def random_log(dice: Random) -> list[Record]:
    """Deliveries with every kind of fault, in the order of their moments, more or less."""
    events = dice.randint(2, 40)
    has_clocks, has_numbers, is_timed = dice.random() < 0.5, dice.random() < 0.8, dice.random() < 0.7
    rows: list[tuple[int, Record]] = []
    spread = dice.choice([3, 30, 200])

    def note(moment: int, record: Record) -> None:
        at_us = {"at_us": moment} if is_timed else {}
        if record.kind in ("deliver", "tag") and (not is_timed or dice.random() < 0.2):
            at_us["delivered_us"] = moment
        fields = {name: getattr(record, name) for name in Record.__struct_fields__}
        rows.append((moment, Record(**{**fields, **at_us})))

    told = {}
    for i in range(events):
        told[i] = {
            "topic": f"T{i % 2}" if dice.random() < 0.9 else None,
            "publisher": f"p{i % 3}" if has_numbers else None,
            "publisher_seq": i // 3 + (dice.random() < 0.05) if has_numbers else None,
            "deadline_us": 10 * i + dice.randint(5, 120) if dice.random() < 0.4 else None,
            "clock": {f"p{k}": (i - 1) // 3 for k in range(3)} if has_clocks and dice.random() < 0.8 else None,
        }
        if is_timed and dice.random() < 0.5:
            note(10 * i + 1, Record("publish", event=f"e{i}", **told[i]))
        if is_timed and dice.random() < 0.1:
            note(
                10 * i + dice.randint(2, 99),
                Record("outcome", event=f"e{i}", note=dice.choice(["refused", "accepted"])),
            )
    for s in range(dice.randint(1, 4)):
        seen = [i for i in range(events) if dice.random() < 0.8]
        for _ in range(dice.choice([0, 0, 1, 4])):
            if len(seen) > 4:
                i = dice.randrange(len(seen) - 4)
                j = i + dice.randint(1, 3)
                seen[i], seen[j] = seen[j], seen[i]
        for _ in range(dice.choice([0, 0, 2])):
            if seen:
                seen.insert(dice.randrange(len(seen)), dice.choice(seen))
        moment, position, had = 0, 0, {}
        for i in seen:
            moment = max(moment, 10 * i) + dice.randint(1, spread)
            position += dice.random() > 0.05
            kind = "tag" if dice.random() < 0.05 else "deliver"
            tells = told[i] if dice.random() < 0.8 and i not in had else {}  # a repetition tells nothing new
            had[i] = None
            at = {"position": position if kind == "deliver" else None}
            note(moment, Record(kind, who=f"s{s}", subscriber=f"s{s}", event=f"e{i}", **at, **tells))
            if kind == "deliver" and dice.random() < 0.04:
                if dice.random() < 0.6:
                    note(moment + 1, Record("restart", who=f"s{s}"))
                note(moment + 2, Record(kind, who=f"s{s}", subscriber=f"s{s}", event=f"e{i}", **at, **tells))
            if dice.random() < 0.05:
                note(
                    moment + 1,
                    Record("gap", subscriber=f"s{s}", topic="T0", number=i, deadline_us=moment + dice.randint(-9, 9)),
                )
    slack = dice.choice([0, 0, 20, 100])
    rows.sort(key=lambda row: row[0] + dice.randint(0, slack))
    return [record for _, record in rows]


def said(records: list[Record]) -> dict[str, int]:
    return {v.judge: v.violations for v in judge(Journal(Header(), records)) if v.judge in LIVE and v.judged}


def added(batches: list[BatchReport]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for batch in batches:
        for verdict in batch.verdicts:
            total[verdict.judge] += verdict.violations
    return dict(total)


def follow(
    records: list[Record], dice: Random, limits: LiveLimits
) -> tuple[LiveAudit, list[BatchReport], list[Record]]:
    """The log cut anywhere, the state written down and taken up between batches; gives what was not late, too."""
    live, batches, on_time, at = LiveAudit(limits), [], [], 0
    while at < len(records):
        step = dice.randint(1, 12)
        part = records[at : at + step]
        late = live.take(part)
        lost = {id(record) for record in late}
        on_time += [record for record in part if id(record) not in lost]
        batches.append(live.close())
        if dice.random() < 0.3:
            live = LiveAudit(limits, decode_state(encode_state(live.state), "state"))
        at += step
    batches.append(live.finish())
    return live, batches, on_time


def compare(seed: int, heard: Counter[object]) -> None:
    dice = Random(seed)
    records = random_log(dice)
    limits = LiveLimits(lateness_us=dice.choice([0, 5, 50, 500]), rows_max=dice.choice([8, 10_000]))
    live, batches, on_time = follow(records, dice, limits)
    assert live.state.late == len(records) - len(on_time)
    if live.state.forgotten:
        heard["forgotten"] += 1
        return
    notified = {record.event for record in on_time if record.kind in ("deliver", "tag")}
    told = [record for record in on_time if record.event is None or record.event in notified]
    least, most = said(told), said(on_time)
    if not any(record.clock is not None for record in told):
        least.pop("causal", None)  # then it is judged by records, which a live audit does not
    found = {verdict.judge: verdict.violations for verdict in live.report()}
    assert least.items() <= found.items() <= most.items(), f"seed {seed}"
    assert added(batches) == found, f"seed {seed}: batches"
    assert [batch.batch for batch in batches] == list(range(len(batches)))
    assert not live.state.open
    heard.update((name, bool(count)) for name, count in found.items())
    heard["late"] += live.state.late
    heard["forced"] += live.state.forced
    heard["early"] += sum(batch.deliveries for batch in batches[:-1])


def test_parts_add_up_to_the_whole_at_every_cut() -> None:
    heard: Counter[object] = Counter()
    for seed in range(400):
        compare(seed, heard)
    assert min(heard["late"], heard["forced"], heard["early"]) > 100, heard
    for name in LIVE:
        assert min(heard[name, True], heard[name, False]) > 10, (name, heard)


@pytest.mark.campaign
def test_parts_of_twenty_thousand_logs_add_up_to_the_whole() -> None:
    heard: Counter[object] = Counter()
    for seed in range(20_000):
        compare(seed, heard)


def told(subscriber: str, event: str, position: int, at: int, **more: object) -> Record:
    return Record(at_us=at, subscriber=subscriber, event=event, position=position, **more)  # type: ignore[arg-type]


def test_an_event_is_open_while_one_before_it_in_a_stream_is() -> None:
    live = LiveAudit(LiveLimits(lateness_us=100))
    live.take([told("s", "A", 1, 10), told("s", "B", 2, 20), told("t", "B", 1, 30), told("t", "C", 2, 40)])
    live.take([told("u", "A", 1, 500)])
    assert live.close().deliveries == 0  # A is open, so is B after it, and C after that
    live.take([told("t", "A", 3, 590), told("u", "D", 2, 700)])
    batch = live.close()
    assert (batch.watermark_us, batch.events) == (600, 3)
    assert {verdict.judge: verdict.violations for verdict in batch.verdicts}["pairwise-order"] == 1


def test_what_would_change_a_verdict_is_late_and_a_repetition_is_judged() -> None:
    live = LiveAudit(LiveLimits(lateness_us=0))
    live.take([told("s", "A", 1, 10), told("s", "B", 5, 20), told("t", "B", 1, 30)])
    live.take([told("z", "Z", 9, 99)])
    live.close()
    for_t, before_b = told("t", "A", 2, 100), told("s", "C", 3, 100)
    late = [for_t, before_b, Record("publish", 100, event="A"), Record("tag", 100, subscriber="u", event="A")]
    again = [told("s", "A", 6, 100), Record("outcome", 100, event="B", note="refused by its home")]
    assert live.take([*late, *again, told("s", "D", 5, 101)]) == late
    batch = live.close()
    assert (batch.late, batch.deliveries) == (4, 2)
    once = next(verdict for verdict in batch.verdicts if verdict.judge == "exactly-once")
    assert once.violations == 1 + 2 + 1  # A again, B at two subscribers, position 5 again
    assert once.witness == "A twice at s: again at position 6"


def test_a_replay_after_a_restart_is_none_whenever_it_comes() -> None:
    for is_restarted in (True, False):
        live = LiveAudit(LiveLimits(lateness_us=0))
        live.take([told("s", "A", 1, 10), told("s", "B", 2, 20)])
        live.close()
        live.take([Record("restart", 30, who="s")] if is_restarted else [])
        live.take([told("s", "A", 1, 40)])
        live.close()
        found = {verdict.judge: verdict.violations for verdict in live.report()}
        assert found["exactly-once"] == (not is_restarted)


def test_a_region_holds_the_others_up_until_it_is_silent_for_too_long() -> None:
    live = LiveAudit(LiveLimits(lateness_us=10, silence_us=1000))
    live.expect("west")
    live.take([told("s", "A", 1, 50), told("s", "B", 2, 500)], "east")
    assert live.close().watermark_us == 500 - 1000 - 10
    live.take([told("w", "A", 1, 90)], "west")
    batch = live.close()
    assert (batch.watermark_us, batch.events, batch.silent) == (80, 0, [])
    live.take([told("s", "C", 3, 1500)], "east")
    batch = live.close()
    assert (batch.watermark_us, batch.events, batch.silent) == (490, 1, ["west"])
    live.take([told("w", "C", 2, 1600)], "west")
    assert live.close().silent == []


def test_rows_that_are_ready_elsewhere_hold_the_watermark() -> None:
    live = LiveAudit(LiveLimits(lateness_us=0))
    live.take([told("s", "A", 1, 50), told("s", "B", 2, 500)])
    assert live.close(upto_us=40).events == 0
    assert live.close().events == 2


def test_latencies_are_told_from_region_to_region_with_what_order_cost() -> None:
    live = LiveAudit(LiveLimits(lateness_us=0))
    events = [Record("publish", 10 * i, event=f"e{i}", topic="T", publisher="p", publisher_seq=i) for i in range(1, 6)]
    live.take(events, "east")
    for i in range(1, 6):
        live.take([Record("arrive", 10 * i + i, who="w", event=f"e{i}"), told("w", f"e{i}", i, 10 * i + 3 * i)], "west")
    live.take([Record("gap", 70, subscriber="w", topic="T", number=9), Record("stalled", 71, subscriber="w")], "west")
    live.take([Record("fault", 100)], "east")
    live.take([Record("fault", 100)], "west")
    batch = live.close()
    line, *others = sorted(batch.latencies, key=lambda line: -line.notified)
    assert (line.published_in, line.delivered_in, line.topic, line.notified) == ("east", "west", "T", 5)
    assert (line.p50_us, line.p99_us, line.held_p50_us, line.held_p99_us) == (9, 15, 6, 10)
    assert sorted((other.delivered_in, other.topic, other.gaps, other.stalls) for other in others) == [
        ("west", "", 0, 1),
        ("west", "T", 1, 0),
    ]


def test_every_table_is_held_to_its_bound_and_what_is_forgotten_is_counted() -> None:
    limits = LiveLimits(lateness_us=0, rows_max=40, remembered_max=30, lines_max=5, causal_window=3)
    live = LiveAudit(limits)
    for i in range(400):
        author = {"publisher": f"p{i}", "publisher_seq": 1, "topic": "T", "clock": {"q": i}}
        rows = [told(f"s{i % 9}", f"e{i}", i, i + 1, **author), Record("publish", i + 1, event=f"never{i}")]
        live.take([*rows, Record("restart", i + 1, who=f"who{i}"), Record("gap", i + 1000, subscriber="s")])
        batch = live.close()
        state = live.state
        assert batch.open_rows <= 40
        assert batch.remembered <= 30
        assert sum(map(len, state.fifo.values())) <= 5
        assert sum(map(len, state.publisher_order.values())) <= 5
        assert max(map(len, (state.ends, state.clocks, state.needs, state.homes, state.restarts))) <= 5
        assert all(len(waiting) <= 3 for waiting in state.clocks.values())
        assert len(state.judged) <= 30
    assert live.state.forgotten > 400
    assert live.state.forced


def test_who_was_met_last_is_forgotten_last() -> None:
    live = LiveAudit(LiveLimits(lateness_us=0, lines_max=2))
    for i, name in enumerate(["a", "b", "a", "c"]):
        live.take([told(name, f"e{i}", i, i + 1, publisher="p", publisher_seq=10 - i)])
        live.close()
    live.take([told("a", "last", 9, 9, publisher="p", publisher_seq=1)])
    live.close()
    assert {verdict.judge: verdict.violations for verdict in live.report()}["fifo"] == 2
