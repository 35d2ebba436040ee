"""Everything that a live audit reads: journals that grow, files that arrive, archives. Where it stands is plain data.

A folder is followed with everything below it: JSON lines that grow, closed files of any form, and archives (a folder
with a manifest). Folders named `region=NAME` tell the region of all rows below. A journal that rotates is followed by
its inode, and its rows are known again where it was packed meanwhile. A file that went away before it was read to its
end is a DataLossError.
"""

import stat
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from unisono.audit.live.feeds import JournalFeed, ReadUpTo, is_that, packs, read_to_the_end
from unisono.audit.parts import MANIFEST, JournalPart, files_below, given_by, is_packed, walk
from unisono.errors import DataLossError

GONE_MAX = 1000
"""Files that went away, after they were read, and that may come back packed."""


class Followed:
    """Everything at or below a path, from the places on."""

    def __init__(self, root: Path, places: Mapping[str, ReadUpTo]) -> None:
        self._root, self._known = root, dict(places)
        self._feeds: dict[str, JournalFeed] = {}
        self._gone: deque[ReadUpTo] = deque(maxlen=GONE_MAX)

    def places(self) -> dict[str, ReadUpTo]:
        """How far everything was read."""
        return {**self._known, **{key: feed.place for key, feed in self._feeds.items()}}

    def look(self) -> list[JournalFeed]:
        """All feeds there are now, those that were not seen before as well."""
        found = self._found()
        if any(key not in found for key in self.places()):
            found = self._found()  # it may have been renamed while we looked
        for key, place in self.places().items():
            if key not in found:
                feed = self._feeds.pop(key, None)
                self._known.pop(key, None)
                self._let_go(place, feed is not None and feed.problem is not None)
        for key, part in found.items():
            path = str(part.path)
            if key not in self._feeds:
                self._feeds[key] = JournalFeed(part, self._known.pop(key, ReadUpTo(path)), self._packed)
            place = self._feeds[key].place
            if place.path != path and is_that(part.path, place):  # it was renamed
                self._feeds[key] = JournalFeed(part, replace(place, path=path), self._packed)
            elif place.path != path:  # another one has the number of a file that went away
                self._let_go(place)
                self._feeds[key] = JournalFeed(part, ReadUpTo(path), self._packed)
        return [self._feeds[key] for key in found]

    def _let_go(self, place: ReadUpTo, is_half: bool = False) -> None:
        if not place.ended and not is_half:
            raise DataLossError(f"{place.path} went away before it was read to its end")
        self._gone.append(place)

    def _packed(self, part: JournalPart) -> ReadUpTo | None:
        """The end of a packed file whose lines were read before they were packed, as old journals are."""
        if part.path.is_dir() or not is_packed(part.path):
            return None
        if any(packs(part.path, place) for place in (*self.places().values(), *self._gone)):
            return read_to_the_end(part)
        return None

    def check(self) -> None:
        """Raises FormatError for a file that was waited for, and cannot be read."""
        for feed in self._feeds.values():
            if feed.problem is not None:
                raise feed.problem

    def regions(self) -> list[str]:
        """Those that folders are named after, whether they have told something or not."""
        below = walk(self._root) if self._root.is_dir() else ()
        return sorted(path.name.partition("=")[2] for path in below if path.match("region=*") and path.is_dir())

    def _found(self) -> dict[str, JournalPart]:
        root = self._root
        if not root.is_dir():
            parts = [*self._rotated(root), *([JournalPart(root, {})] if root.exists() else ())]
        elif (root / MANIFEST).exists():
            parts = [JournalPart(root, {})]
        else:
            archives = sorted(path.parent for path in walk(root) if path.name == MANIFEST)
            inside = [part for part in files_below(root) if not any(path in part.path.parents for path in archives)]
            parts = inside + [JournalPart(path, given_by(path.relative_to(root).parts)) for path in archives]
        keyed = [(_key(part.path), part) for part in parts]
        return {key: part for key, part in keyed if key is not None}

    def _rotated(self, root: Path) -> list[JournalPart]:
        """Older files of a journal that rotates, if we began to read them before they were renamed."""
        older = sorted(root.parent.glob(f"{root.stem}.*{root.suffix}"), reverse=True)
        places = self.places()
        return [JournalPart(path, {}) for path in older if path != root and _key(path) in places]


def _key(path: Path) -> str | None:
    """A journal is renamed when it rotates; an archive stays where it is, and knows who it is. None if it is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return str(path)
    return f"{status.st_dev}:{status.st_ino}"
