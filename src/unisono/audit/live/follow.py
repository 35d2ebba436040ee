"""`unisono audit --follow`: reads what is there, judges what is closed, keeps the state, looks again."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from unisono.audit.live.core import BatchReport, LiveAudit
from unisono.audit.live.feeds import JournalFeed
from unisono.audit.live.following import Followed
from unisono.audit.live.state import LiveLimits
from unisono.audit.live.store import AuditStore, Saved
from unisono.errors import MisuseError

BATCH_ROWS = 50_000
"""After so many rows a batch ends, though there are more."""
PAUSE_S = 0.25


class Follower:
    """Follows one path. With a `folder` it goes on where the last one stopped, even if that was killed."""

    def __init__(self, root: Path, limits: LiveLimits = LiveLimits(), folder: Path | None = None) -> None:
        if folder is not None and root.is_dir() and root.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise MisuseError(f"--state {folder} lies in what is followed: take a folder outside of {root}")
        self._store = AuditStore(folder, str(root)) if folder is not None else None
        self.saved = self._store.saved if self._store is not None else Saved(str(root))
        self.live = LiveAudit(limits, self.saved.live)
        self._files = Followed(root, self.saved.places)

    def step(self) -> BatchReport | None:
        """One batch of what is there; None if there is nothing new."""
        feeds = self._files.look()
        for region in self._files.regions():
            self.live.expect(region)
        rows = 0
        while rows < BATCH_ROWS and (ready := [feed for feed in feeds if feed.has_more()]):
            # The one whose rows are the oldest: rows that are far apart in time would have to wait for each other.
            feed = min(ready, key=JournalFeed.begins)
            records = feed.read()
            rows += len(records)
            try:
                self.live.take(records, feed.region)
            except MisuseError as problem:
                raise MisuseError(f"{feed.place.path}: {problem}") from None
            if feed.header is not None and not self.saved.promises:
                self.saved.promises = feed.header.promises
        if not rows:
            return None
        upto = min((feed.begins() for feed in feeds if feed.has_more()), default=None)
        return self._keep(self.live.close(upto))

    def finish(self) -> BatchReport:
        """The last batch: what is still open is judged as it is. Raises FormatError if a file cannot be read."""
        self._files.check()
        return self._keep(self.live.finish())

    def _keep(self, batch: BatchReport) -> BatchReport:
        self.saved.batch, self.saved.places = batch, self._files.places()
        if self._store is not None:
            self._store.save()
        return batch

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def follow(
    follower: Follower, idle_s: float | None, clock: Callable[[], float] = time.monotonic
) -> Iterator[BatchReport]:
    """Batches as they come; ends when nothing came for `idle_s`, after a last batch that closes everything."""
    last = clock()
    while idle_s is None or clock() - last < idle_s:
        batch = follower.step()
        if batch is None:
            time.sleep(PAUSE_S)
        else:
            last = clock()
            yield batch
    yield follower.finish()
