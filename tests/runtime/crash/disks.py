"""Small disks for nodes, in memory, so that they can be filled. Whoever may not mount is told why."""

import subprocess
from pathlib import Path

DISK_BYTES = 4 << 20


class Disks:
    """Those of one run."""

    def __init__(self) -> None:
        self.mounted: list[Path] = []
        self.why_not = ""

    def mount(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.why_not = _problem("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path))
        if not self.why_not:
            self.mounted.append(path)

    def unmount(self) -> None:
        for path in self.mounted:
            _problem("umount", str(path))
        self.mounted.clear()


def _problem(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"there is no {command[0]} here"
    return done.stderr.strip() if done.returncode else ""
