"""Errors say which setting, what may stand there, and what was probably meant."""

from pathlib import Path
from typing import Any

import pytest

from unisono.errors import FormatError, MisuseError
from unisono.model.arguments import expect_one_of
from unisono.model.deployment import check_deployment, load_deployment
from unisono.sim import scenario

WHOLE: dict[str, Any] = {"version": 1, "name": "d", "nodes": [{"name": "hub", "listen": "127.0.0.1:7474"}]}


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (
            {"broker": {"kind": "nat"}},
            "broker.kind",
            ("'nat' is not one of embedded, memory, nats", "did you mean nats?"),
        ),
        ({"broker": {"kindd": "nats"}}, "broker", ("'kindd' is no setting", "did you mean kind?")),
        ({"kind": "sequencr"}, "kind", ("did you mean sequencer?",)),
        ({"nodes": [{"name": "hub", "listn": "x"}]}, "nodes.hub", ("did you mean listen?",)),
        ({"nodes": [{"name": "hub", "roles": ["brokr"]}]}, "nodes.hub.roles.0", ("did you mean broker?",)),
        ({"limits": {"client_topics_max": "many"}}, "limits.client_topics_max", ("Expected `int`",)),
        ({"security": {"zzz": 1}}, "security", ("'zzz' is no setting; there are certificate",)),
        ({"topics": [{"nam": "a"}]}, "topics.0", ("did you mean name?",)),
        ({"name": 7}, "name", ("Expected `str`, got `int`",)),
    ],
)
def test_a_wrong_setting_is_named_with_what_may_stand_there(
    change: dict[str, Any], where: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(FormatError) as error:
        check_deployment({**WHOLE, **change})
    assert error.value.where == where
    assert [word for word in words if word not in error.value.problem] == []


def test_what_resembles_nothing_is_not_guessed() -> None:
    with pytest.raises(FormatError) as error:
        check_deployment({**WHOLE, "security": {"zzz": 1}})
    assert "did you mean" not in str(error.value)


def test_a_missing_table_entry_is_named() -> None:
    with pytest.raises(FormatError, match=r"nodes\.0: name is missing"):
        check_deployment({"version": 1, "name": "d", "nodes": [{"listen": "127.0.0.1:7474"}]})


def test_scenarios_say_it_alike() -> None:
    with pytest.raises(FormatError, match=r"workload: 'clints' is no setting; .*did you mean clients\?"):
        scenario.parse('protocol = "fifo"\npromises = ["fifo"]\n[workload]\nclints = 3\n', "t", Path())


def test_an_address_without_its_scheme_is_told_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"unisono://127.0.0.1:7474, of a NATS server nats://127.0.0.1:7474"):
        load_deployment(Path("127.0.0.1:7474"))
    with pytest.raises(FormatError, match=r"unisono init .*missing.toml"):
        load_deployment(tmp_path / "missing.toml")


def test_a_typo_in_an_argument_is_answered_with_what_was_meant() -> None:
    with pytest.raises(MisuseError, match="order is one of fifo, total, not 'totl': did you mean total"):
        expect_one_of("order", "totl", ("fifo", "total"))
