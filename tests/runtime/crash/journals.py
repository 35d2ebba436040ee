"""What the processes of a crash run write down: read while they write, and made one journal at the end."""

from pathlib import Path

import msgspec

from unisono.model.journal import Header, Journal, Record

_decoder = msgspec.json.Decoder(Record)


class Journals:
    """The journals below a directory: those of clients in one directory per process, those of nodes in `data`."""

    def __init__(self, directory: Path) -> None:
        self.clients = directory / "journals"
        self._nodes = directory / "data" / "journal"
        self.clocks: dict[str, int] = {}
        """Processes whose clocks are wrong, by this many microseconds."""
        self.crashed: dict[str, None] = {}
        self._read: dict[Path, tuple[int, list[Record]]] = {}

    def of(self, process: str) -> list[Record]:
        """What one client process wrote, in its order."""
        return [record for path in sorted((self.clients / process).glob("*.jsonl")) for record in self._new(path)]

    def of_nodes(self) -> list[Record]:
        return [record for path in sorted(self._nodes.glob("*.jsonl")) for record in self._new(path)]

    def _new(self, path: Path) -> list[Record]:
        at, records = self._read.get(path, (0, []))
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
        end = data.rfind(b"\n") + 1  # what a kill cut short is not whole
        lines = data[:end].splitlines()
        records += [_decoder.decode(line) for line in lines[0 if at else 1 :]]
        self._read[path] = (at + end, records)
        return records

    def records(self) -> list[Record]:
        """Everything, in the order of a right clock. Who was killed says so where its journal ends."""
        records = self.of_nodes()
        for directory in sorted(self.clients.glob("*")):
            mine, wrong_us = self.of(directory.name), self.clocks.get(directory.name, 0)
            if wrong_us:
                mine = [msgspec.structs.replace(record, at_us=record.at_us - wrong_us) for record in mine]
            records += mine
            if directory.name in self.crashed and mine:
                sids = dict.fromkeys(record.who for record in mine if record.who is not None)
                records += [Record("crash", mine[-1].at_us, who=sid) for sid in sids]
        return sorted(records, key=lambda record: record.at_us)

    def journal(self, promises: tuple[str, ...], *more: Record) -> Journal:
        """All as one, ended by `end`. A home repeats its stamps after a restart: said twice is said once."""
        seen: dict[tuple[str | None, int | None, str | None], None] = {}
        unique: list[Record] = []
        for record in self.records():
            if record.kind == "timestamp":
                stamp = (record.topic, record.number, record.event)
                if stamp in seen:
                    continue
                seen[stamp] = None
            unique.append(record)
        last = max((record.at_us for record in (*unique, *more)), default=0)
        return Journal(Header(promises=promises), [*unique, *more, Record("end", last)])
