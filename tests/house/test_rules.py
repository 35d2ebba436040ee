"""Rules of the protocols: each has its module and tests, each test of the papers cites one, the table is as made."""

from tests.house.rules import ROOT, TABLE, citations, page, rules


def test_every_rule_names_a_module_that_exists() -> None:
    assert [rule for rule in rules().values() if not (ROOT / "src" / "unisono" / rule.module).is_file()] == []


def test_every_rule_has_a_test() -> None:
    cited = {name for names in citations().values() for name in names}
    assert sorted(set(rules()) - cited) == []


def test_every_test_of_the_papers_cites_a_rule_that_there_is() -> None:
    known = rules()
    assert [test for test, names in citations().items() if not names or not set(names) <= set(known)] == []


def test_the_table_is_up_to_date() -> None:
    assert TABLE.read_text(encoding="utf-8") == page(), "run: python -m tests.house.rules"
