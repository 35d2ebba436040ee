"""What people meet first on the command line: contexts, `init`, completion, `-h`, and lines that nobody breaks."""

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unisono.cli.context import contexts_file, reach
from unisono.cli.main import application
from unisono.cli.screen import screen
from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import load_deployment

ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "unisono"]


def unisono(*arguments: str) -> str:
    """Runs a command in this process; what it raises comes here."""
    result = CliRunner().invoke(application(arguments[0]), list(arguments), prog_name="unisono")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture(autouse=True)
def _own_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.chdir(tmp_path)


def test_a_context_stands_for_an_address_and_for_how_to_be_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").touch()
    unisono("context", "add", "prod", "unisono://eu:7474", "--authority", "ca.pem", "--token-variable", "PROD")
    with pytest.raises(MisuseError, match="environment variable PROD"):
        reach("prod")
    monkeypatch.setenv("PROD", "secret")
    assert reach("prod") == reach("unisono://eu:7474", "secret", str(tmp_path / "ca.pem"))
    assert "secret" not in contexts_file().read_text()
    assert reach("prod", "mine", "system") == reach("unisono://eu:7474", "mine", "system")


def test_contexts_are_listed_replaced_and_removed() -> None:
    Path("deployment.toml").touch()
    for where in ("unisono://old:1", "unisono://new:2"):
        unisono("context", "add", "a", where)
    unisono("context", "add", "b", "deployment.toml")
    assert [line.split("\t") for line in unisono("context", "list").splitlines()] == [
        ["a", "unisono://new:2"],
        ["b", str(Path("deployment.toml").absolute())],
    ]
    unisono("context", "remove", "a")
    with pytest.raises(MisuseError, match="no context 'a'; there are: b"):
        unisono("context", "remove", "a")


def test_a_word_that_stands_for_nothing_is_told_with_what_to_do() -> None:
    with pytest.raises(MisuseError, match="unisono context add prod unisono://host:port"):
        reach("prod")
    Path("prod").write_text("a file has the name")
    assert reach("prod").where == "prod"
    with pytest.raises(MisuseError, match="no file here"):
        unisono("context", "add", "prod2", "deploymnet.toml")
    with pytest.raises(MisuseError, match="one word"):
        unisono("context", "add", "not a word", "unisono://a:1")
    contexts_file().write_text("[broken")
    with pytest.raises(FormatError, match="mend the file"):
        reach("other")


def test_init_writes_a_file_of_about_ten_commented_lines() -> None:
    unisono("init", "--region", "eu-central-1", "--region", "us-east-1")
    text = Path("deployment.toml").read_text()
    assert len(text.splitlines()) <= 12
    assert text.startswith("# ")
    deployment = load_deployment(Path("deployment.toml"))
    assert deployment.round_trip_ms["eu-central-1 us-east-1"] > 50
    assert [(node.name, node.parent) for node in deployment.nodes] == [
        ("eu-central-1-1", None),
        ("us-east-1-1", "eu-central-1-1"),
    ]


def test_init_warns_of_regions_without_distances_and_takes_them() -> None:
    said = unisono("init", "a.toml", "--region", "moon", "--region", "mars", "--region", "eu-central-1")
    assert [line.split()[4:7] for line in said.splitlines() if line.startswith("warning")] == [
        ["moon", "and", "mars"],
        ["moon", "and", "eu-central-1"],
        ["mars", "and", "eu-central-1"],
    ]
    said = unisono("init", "b.toml", "--region", "moon", "--region", "mars", "--distance", "mars,moon=2500.5")
    assert "warning" not in said
    assert load_deployment(Path("b.toml")).latencies().between("moon", "mars") == 1_250_250


def test_what_commands_have_written_can_be_read_by_programs() -> None:
    made = json.loads(unisono("init", "--region", "moon", "--region", "mars", "--json"))
    assert made == {
        "file": "deployment.toml",
        "nodes": ["moon-1", "mars-1"],
        "unknown_distances": [["moon", "mars"]],
    }
    added = json.loads(unisono("context", "add", "a", "unisono://h:1", "--json"))
    assert added == json.loads(unisono("context", "list", "--json")) == {"a": {"where": "unisono://h:1"}}
    assert json.loads(unisono("context", "remove", "a", "--json")) == added
    assert json.loads(unisono("context", "list", "--json")) == {}


def test_init_knows_hosts_and_servers() -> None:
    hosts = ("--region", "eu=eu.example.com", "--region", "us=us.example.com", "--distance", "eu,us=88")
    unisono("init", *hosts, "--server", "nats://n1:4222", "--server", "nats://n2:4222", "--name", "shop")
    deployment = load_deployment(Path("deployment.toml"))
    assert [(node.listen, node.reached_at) for node in deployment.nodes] == [
        ("0.0.0.0:7474", "eu.example.com:7474"),
        ("0.0.0.0:7474", "us.example.com:7474"),
    ]
    assert (deployment.name, deployment.broker.kind, len(deployment.broker.servers)) == ("shop", "nats", 2)


@pytest.mark.parametrize("host", ["2001:db8::7", "[2001:db8::7]"])
def test_init_listens_where_a_host_of_ipv6_is_reached(host: str) -> None:
    unisono("init", "--region", f"eu={host}")
    (node,) = load_deployment(Path("deployment.toml")).nodes
    assert (node.listen, node.reached_at) == ("[::]:7474", "[2001:db8::7]:7474")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--broker", "nats"), "wants at least one --server"),
        (("--region", "eu="), "NAME=HOST"),
        (("--region", "eu", "--region", "eu"), "named twice"),
        (("--region", "eu", "--distance", "eu=3"), "A,B=MS"),
        (("--region", "eu", "--distance", "eu,us=far"), "A,B=MS"),
        (("--region", "eu", "--distance", "eu,us=3"), "not two regions"),
    ],
)
def test_init_writes_nothing_that_nobody_could_read(arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(MisuseError, match=problem):
        unisono("init", *arguments)
    assert not Path("deployment.toml").exists()


def test_init_asks_on_a_terminal(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    asking = subprocess.Popen([*MODULE, "init"], cwd=tmp_path, env=environment, **streams)
    os.close(theirs)
    os.write(terminal, b"eu us-east-1\nnats://n:4222\nshop\n77\n")
    assert asking.wait(60) == 0
    os.close(terminal)
    written = tomllib.loads((tmp_path / "deployment.toml").read_text())
    assert (written["name"], written["broker"]) == ("shop", {"kind": "nats", "servers": ["nats://n:4222"]})
    assert written["round_trip_ms"] == {"eu us-east-1": 77.0}


def test_the_shell_completes_commands_options_and_contexts(tmp_path: Path) -> None:
    unisono("context", "add", "production", "unisono://a:1")

    def complete(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_UNISONO_COMPLETE": "complete_bash"}
        environment = {**os.environ, **words, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(MODULE, env=environment, capture_output=True, text=True, check=False).stdout.split()

    assert complete("unisono con") == ["context"]
    assert "--deadline" in complete("unisono sub prod trades --de")
    assert complete("unisono sub pro") == ["production"]


@pytest.mark.parametrize("kind", ["causal", "overlay", "regions"])
def test_where_nobody_sequences_there_is_nothing_to_list_or_to_move(kind: str) -> None:
    unisono("init", "--kind", kind, "--region", "eu-central-1", "--region", "us-east-1", "--port", "1")
    for words in (("topics",), ("groups",), ("move", "trades", "us-east-1-1")):
        with pytest.raises(MisuseError, match=f"nodes of kind {kind} do not sequence topics"):
            unisono(words[0], "deployment.toml", *words[1:])
    assert "its nodes carry the events" in unisono("doctor", "deployment.toml", "--timeout", "0.5")


def test_help_has_a_short_flag_everywhere() -> None:
    assert "Usage: unisono sub" in unisono("sub", "-h")
    assert "Usage: unisono context add" in unisono("context", "add", "-h")


def test_in_a_pipe_no_line_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    screen().print("long " * 500)
    assert len(capsys.readouterr().out.splitlines()) == 1
