"""The pages are true: links lead somewhere, commands, rooms, tests and scenarios that they name exist."""

import re
import subprocess
import sys
from pathlib import Path

from unisono.audit import JUDGES
from unisono.cli.main import COMMANDS
from unisono.sim import scenario

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
NAMES = {command.name for command in COMMANDS}


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next one."""
    found = re.search(rf"^## {title}.*?$(.*?)(?=^## |\Z)", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None, f"{page} has no section {title}"
    return found[1]


def test_links_lead_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []


def test_every_decision_has_its_number_and_is_listed() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in pages]
    listed = re.findall(r"^(\d+)\. \[([^]]+)\]\(decisions/([^)]+)\)", (ROOT / "docs" / "README.md").read_text(), re.M)
    assert [(f"# {number}. {title}", page) for number, title, page in listed] == [
        (title, page.name) for title, page in zip(titles, pages)
    ]
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == sorted(dict.fromkeys(numbers)), "a number is given once"
    unused = re.search(r"no record has\s([\d, or]+),", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    assert unused is not None
    missing = [number for number in range(1, numbers[-1]) if number not in numbers]
    assert [int(number) for number in re.findall(r"\d+", unused[1])] == missing


def test_commands_on_the_pages_exist() -> None:
    for page in PAGES:
        commands = re.findall(r"(?:^ {4}|`|\$ |bin/)unisono ([a-z]+)", page.read_text(encoding="utf-8"), re.M)
        assert [command for command in commands if command not in NAMES] == [], page.name


def test_what_the_readme_misses_is_missing() -> None:
    missing = re.findall(r"`([a-z]+)`", section("README.md", "What is not there yet"))
    assert sorted(NAMES & set(missing)) == []


def test_the_readme_shows_every_command_and_every_room() -> None:
    shown = re.findall(
        r"^    unisono ([a-z]+)", section("README.md", "Commands") + section("README.md", "Five minutes"), re.M
    )
    assert sorted(NAMES - set(shown)) == []
    listed = re.findall(r"^    ([a-z]+)/ ", section("README.md", "The rooms"), re.M)
    rooms = {path.parent.name for path in (ROOT / "src" / "unisono").glob("*/__init__.py")}
    assert sorted(listed) == sorted(rooms)


def test_guarantees_name_judges_scenarios_and_tests_that_exist() -> None:
    page = (ROOT / "GUARANTEES.md").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"judges? `([a-z-]+)`", page) if name not in JUDGES] == []
    assert [name for name in re.findall(r"scenarios? `([a-z/-]+)`", page) if name not in scenario.names()] == []
    assert [path for path in re.findall(r"`(tests/[^`:]+)", page) if not (ROOT / path).exists()] == []


def test_the_program_in_the_readme_runs(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert program is not None
    command = [sys.executable, "-c", program[1]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["trades", "quotes"]


def test_what_the_walk_names_is_there() -> None:
    """`[file](path) `Name.method``: the class and the method are in that file."""
    page = ROOT / "docs" / "walk.md"
    named = re.findall(r"\]\((\.\./src/[^)]+\.py)\)\s+`([\w.]+)`", page.read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = [
        f"{path}: {name}"
        for path, name in named
        for part in name.split(".")
        if not re.search(rf"(def|class) {part}\b", (page.parent / path).read_text(encoding="utf-8"))
    ]
    assert missing == []
