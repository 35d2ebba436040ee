"""Where files of this room are: a directory, or a URL of any file system that Arrow reads."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from unisono.errors import MisuseError


def file_system(location: str) -> tuple[Any, str]:
    """`file_system("s3://bucket/table")`: the file system, and the path there."""
    if "://" not in location:
        return fs.LocalFileSystem(), str(Path(location).absolute())
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, OSError) as error:
        raise MisuseError(f"{location}: {str(error).splitlines()[0]}") from None
    return found
