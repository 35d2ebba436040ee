"""The README's deployment, command by command as printed; only the ports are others, so that nobody is in the way."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from unisono.runtime.tools.ports import free_ports

ROOT = Path(__file__).parents[2]
OWN_TERMINAL = "in a terminal of its own"


def sequence() -> list[tuple[list[str], bool]]:
    """The words of each command, and whether it goes on running while the next ones do."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^(?:    unisono [^\n]*\n)+", page[page.index("    unisono init") :], re.M)
    assert block is not None
    lines = [line.partition("#") for line in block[0].splitlines()]
    return [(shlex.split(command), OWN_TERMINAL in comment) for command, _, comment in lines]


def test_the_readme_sequence_works_as_printed(tmp_path: Path) -> None:
    ports = free_ports(4)
    first = next(port for port in ports if not {port + 1, port + 2} & set(ports))
    running: list[subprocess.Popen[str]] = []
    try:
        for (program, *arguments), goes_on in sequence():
            assert program == "unisono"
            words = [word.replace("7474", str(first)).replace("7476", str(first + 2)) for word in arguments]
            words += ["--port", str(first)] if words[0] == "init" else []
            command = [sys.executable, "-m", "unisono", *words]
            if goes_on:
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
                running.append(subprocess.Popen(command, cwd=tmp_path, text=True, **pipes))
                assert running[-1].stderr is not None
                assert running[-1].stderr.readline().startswith((words[2], "subscribed"))
            else:
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
                assert done.returncode == 0, f"{words}: {done.stderr}"
        subscriber = running[-1]
        assert subscriber.stdout is not None
        heard = [subscriber.stdout.readline(), subscriber.stdout.readline()]
        assert ['"px":101' in heard[0].replace(" ", ""), '"bid":100.9' in heard[1].replace(" ", "")] == [True, True]
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert [process.returncode for process in running] == [0, 0, 0]


def test_the_audit_in_the_readme_says_what_is_shown(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^    \$ printf .*?(?=\n\n)", page, re.M | re.S)
    assert block is not None
    lines = [line[4:] for line in block[0].splitlines()]
    end = next(at for at, line in enumerate(lines) if line.startswith("$ unisono"))
    script = "\n".join(lines[: end + 1]).replace("$ ", "", 1).replace("$ unisono", f"{sys.executable} -m unisono")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert lines[-1] in done.stdout
