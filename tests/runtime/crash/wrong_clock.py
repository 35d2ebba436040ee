"""Processes whose system time is wrong: a library of a few lines, made with the machine's C compiler."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


@cache
def compiler() -> str | None:
    return shutil.which("cc")


def library(directory: Path) -> Path | None:
    """Made there if it is not there yet; None: there is no compiler."""
    made = directory / "wrong_clock.so"
    if not made.exists() and (cc := compiler()) is not None:
        subprocess.run([cc, "-shared", "-fPIC", "-O2", "-o", str(made), str(SOURCE)], check=True)
    return made if made.exists() else None


def environment(directory: Path, offset: Path) -> dict[str, str]:
    """Of a process whose time is wrong by the seconds in that file; empty where none can be."""
    made = library(directory)
    return {"LD_PRELOAD": str(made), "WRONG_CLOCK": str(offset)} if made is not None else {}
