"""Scenario files: what they can say, and how they complain."""

from pathlib import Path

import pytest

from unisono.audit import judge
from unisono.errors import FormatError, MisuseError
from unisono.sim import scenario

SCRIPT = """
protocol = "fifo"
promises = ["fifo"]
[workload]
clients = 0
[[script]]
at = "10ms"
who = "ann"
do = "subscribe"
topics = ["news", "weather"]
[[script]]
at = "1s"
who = "bob"
do = "publish"
topics = ["news", "weather"]
payload = "rain"
[[script]]
at = "2s"
who = "ann"
do = "unsubscribe"
topics = ["news"]
[[script]]
at = "3s"
who = "bob"
do = "publish"
topics = ["news", "weather"]
"""


def parsed(text: str, folder: Path = Path()) -> scenario.Scenario:
    return scenario.parse(text, "test", folder)


def test_a_script_happens_as_written() -> None:
    records = scenario.play(parsed(SCRIPT), 0).records
    told = [(r.kind, r.at_us // 1_000_000, r.topic) for r in records if r.who == "ann"]
    assert told == [
        ("subscribe", 0, "news"),
        ("subscribe", 0, "weather"),
        ("deliver", 1, "news"),
        ("deliver", 1, "weather"),
        ("unsubscribe", 2, "news"),
        ("deliver", 3, "weather"),
    ]
    assert records[-1].kind == "end"


@pytest.mark.parametrize("name", scenario.names())
def test_built_in_scenarios_say_what_they_are_and_promise_something(name: str) -> None:
    chosen = scenario.load(name)
    assert chosen.name == name
    assert chosen.about.endswith(".")
    assert chosen.promises


@pytest.mark.parametrize("name", [name for name in scenario.names() if name.startswith("fifo/")])
@pytest.mark.parametrize("seed", range(20))
def test_fifo_keeps_its_promises(name: str, seed: int) -> None:
    journal = scenario.play(scenario.load(name), seed)
    assert [verdict for verdict in judge(journal, journal.header.promises) if not verdict.holds] == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for name in scenario.names() if name.startswith("fifo/")])
def test_fifo_keeps_its_promises_over_a_thousand_seeds(name: str) -> None:
    for seed in range(1_000):
        journal = scenario.play(scenario.load(name), seed)
        assert [verdict for verdict in judge(journal, journal.header.promises) if not verdict.holds] == [], seed


def test_without_fifo_the_judge_says_no() -> None:
    """The same world, judged on a promise nobody makes there: the verdicts above mean something."""
    broken = 0
    for seed in range(10):
        [verdict] = judge(scenario.play(scenario.load("fifo/reorder"), seed), ["pairwise-order"])
        broken += not verdict.holds
    assert broken == 10


def test_the_deadline_judge_says_no_when_the_deadline_is_shorter_than_the_wait() -> None:
    lossy = scenario.load("fifo/lossy")
    [verdict] = judge(scenario.play(scenario.with_options(lossy, {"deadline": "300ms"}), 0), ["deadline"])
    assert not verdict.holds


def test_a_trace_tells_of_every_message_and_changes_nothing_else() -> None:
    plain = scenario.load("sequencer/static")
    traced = scenario.play(scenario.with_options(plain, {"trace": True}), 0).records
    assert {record.kind for record in traced} >= {"send", "arrive"}
    assert [r for r in traced if r.kind not in ("send", "arrive")] == scenario.play(plain, 0).records


def test_a_deployment_file_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(
        'version = 1\n[[regions]]\nname = "eu"\n[[regions]]\nname = "us"\n[round_trip_ms]\n"eu us" = 80.0\n'
        '[[topics]]\nname = "trades"\n'
    )
    path = tmp_path / "mine.toml"
    path.write_text('protocol = "fifo"\npromises = ["fifo"]\ndeployment = "two.toml"\n[workload]\nclients = 2\n')
    chosen = scenario.load(path)
    assert chosen.topics == ["trades"]
    assert [(client.name, client.region) for client in chosen.clients] == [("c0", "eu"), ("c1", "us")]
    latencies = {
        r.delivered_us - r.published_us
        for r in scenario.play(chosen, 1).records
        if r.delivered_us is not None and r.published_us is not None and r.publisher != r.subscriber
    }
    assert latencies == {40_000}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("protocol = ", "Invalid value"),
        ("promises = []", "protocol"),
        ('protocol = "fifi"', "there are fifo"),
        ('protocol = "fifo"\nflavour = 1', "flavour"),
        ('protocol = "fifo"\n[workload]\nbegin = "soon"', "'soon' is not a time span"),
        ('protocol = "fifo"\n[workload]\nbegin = true', "True is not a time span"),
        ('protocol = "fifo"\n[[faults]]\nkind = "flood"', "flood"),
        ('protocol = "fifo"\ndeployment = "nowhere.toml"', "nowhere.toml"),
        ('protocol = "fifo"\n[deployment]\nversion = 7', "7 is unknown"),
        ('protocol = "fifo"\n[links]\nlatency = { kind = "warp" }', "warp"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint) as caught:
        parsed(text)
    assert "\n" not in str(caught.value)


def test_wrong_options_hosts_and_operations_are_refused() -> None:
    fifo = scenario.load("fifo/reorder")
    with pytest.raises(FormatError, match="options"):
        scenario.play(scenario.with_options(fifo, {"options.deadlin": 3}), 0)
    with pytest.raises(MisuseError, match="n9"):
        scenario.play(scenario.with_options(fifo, {"faults": [{"kind": "crash", "who": "n9"}]}), 0)
    with pytest.raises(MisuseError, match="'dance'"):
        scenario.play(scenario.with_options(fifo, {"script": [{"at": 1, "who": "c0", "do": "dance"}]}), 0)
    with pytest.raises(MisuseError, match="no scenario 'fifo/nothing'"):
        scenario.load("fifo/nothing")


def test_options_replace_single_values_and_leave_the_rest() -> None:
    fifo = scenario.load("fifo/lossy")
    changed = scenario.with_options(fifo, {"workload.clients": 9, "options.held_max": 3, "links.loss": {"rate": 0.5}})
    assert (changed.workload.clients, changed.options["held_max"]) == (9, 3)
    assert changed.links.loss is not None
    assert changed.workload.topics == fifo.workload.topics
    assert changed.faults == fifo.faults
    assert scenario.with_options(fifo, {}) == fifo
    with pytest.raises(MisuseError, match="'about' is not a table"):
        scenario.with_options(fifo, {"about.clients": 9})


@pytest.mark.parametrize("name", scenario.names())
def test_a_scenario_travels_as_text(name: str) -> None:
    chosen = scenario.load(name)
    assert scenario.decode(scenario.encode(chosen)) == chosen
