"""The page on replicas, as somebody follows it who has nothing else."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from unisono.runtime.tools.nats_server import find_binary
from unisono.runtime.tools.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "replicas.md"
PATIENCE_S = 60


def block(after: str, kind: str) -> str:
    found = re.search(re.escape(after) + rf".*?^```{kind}\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    assert found is not None
    return found[1]


def test_from_nothing_to_two_sites_as_the_page_says(tmp_path: Path) -> None:
    ports = {port: str(free_ports(1)[0]) for port in ("4222", "7474")}
    binaries = (str(Path(sys.executable).parent), str(Path(find_binary()).parent), os.environ["PATH"])
    environment = {**os.environ, "PATH": os.pathsep.join(binaries)}

    def here(text: str) -> str:
        for port, free in ports.items():
            text = text.replace(port, free)
        return text

    (tmp_path / "deployment.toml").write_text(here(block("`deployment.toml`:", "toml")))
    (tmp_path / "app.py").write_text(block("`app.py`:", "python"))
    typed = re.findall(r"^    \$ (.*)$", PAGE.read_text(), re.M)
    until = time.monotonic() + PATIENCE_S
    told: list[str] = []
    with ExitStack() as running:
        for line in map(here, typed):
            if line.endswith("&"):
                started = subprocess.Popen(line[:-1].split(), cwd=tmp_path, env=environment)
                running.callback(started.wait)
                running.callback(started.terminate)
                continue
            while True:  # what was started before may need a moment
                done = subprocess.run(
                    line.split(), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
                )
                if not done.returncode or time.monotonic() > until or "compare" not in line:
                    break
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            told.append(done.stdout)
    assert len(typed) == 8
    stable = [line for output in told for line in output.splitlines() if line.startswith("stable")]
    assert stable == ["stable ((99,),)", "stable ((98,),)", "stable ((97,),)"]
    tentative = {line for line in told[2].splitlines() if line.startswith("tentative")}
    assert len(tentative) == 1
    assert tentative <= {"tentative ((98,),)", "tentative ((97,),)"}, "it may know of the other one's by then"
    assert "lisbon.db: 9 operations of stock" in told[3]
    assert told[4].endswith("the same\n")
