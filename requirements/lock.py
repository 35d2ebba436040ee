"""Locks: one file per extra with names, versions and hashes; all agree because one compile of everything binds them.

Each file is complete: the core and the extra with what they pull in. Several can be installed together.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OPTIONS = ["--universal", "--python-version", "3.11", "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"]


def compile_lock(output: Path, *arguments: str) -> None:
    """One run of uv; an existing output keeps its versions unless it is removed first."""
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "compile", *OPTIONS, *arguments, "-o", output], check=True, cwd=HERE.parent)


def main(extras: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        everything = Path(scratch) / "everything.txt"
        compile_lock(everything, "pyproject.toml", "requirements/build.in", "--all-extras")
        bound = ["--constraint", str(everything), "--generate-hashes"]
        jobs = {"build": ["requirements/build.in"], "core": ["pyproject.toml"]}
        jobs |= {extra: ["pyproject.toml", "--extra", extra] for extra in extras}
        for name, sources in jobs.items():
            output = HERE / f"{name}.txt"
            output.unlink(missing_ok=True)
            compile_lock(output, *sources, *bound)
            print(f"{output.name}: {sum('==' in line for line in output.read_text().splitlines())} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
