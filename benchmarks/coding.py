"""Coding on one core: 16 rows of 1403 bytes, 4 of them lost; ours with and without the kernel, beside zfec."""

import time
from collections.abc import Callable
from random import Random
from typing import Any

import zfec

from unisono.structures import field
from unisono.structures.decoder import Decoder, encode, split, unit

ROWS, ROW_BYTES, EXTRAS = 16, 1403, 4
TRIES = 7
REPEAT = 200


def best(work: Callable[[], Any], repeat: int = REPEAT) -> float:
    """CPU seconds of one call, the best of several tries: others on the machine only ever make it slower."""
    times = []
    for _ in range(TRIES):
        started = time.process_time()
        for _ in range(repeat):
            work()
        times.append((time.process_time() - started) / repeat)
    return min(times)


def run() -> list[dict[str, Any]]:
    dice = Random(0)
    content = dice.randbytes(ROWS * ROW_BYTES)
    rows = split(content, ROWS, ROW_BYTES)
    extras = encode(rows, EXTRAS, dice)
    packets = [(unit(ROWS, i), rows[i]) for i in range(EXTRAS, ROWS)] + extras
    lines = [line for line, _ in extras]

    def decode() -> list[bytes]:
        decoder: Decoder[int] = Decoder(ROWS, ROW_BYTES)
        for line, payload in packets:
            decoder.put(line, payload, 0)
        return decoder.rows()

    field.warm_up().join()
    if not field.is_compiled():
        raise SystemExit("numba is not installed: the numbers would be those of the tables only")
    if b"".join(decode()) != content or field.combine_portable(lines, rows) != [payload for _, payload in extras]:
        raise SystemExit("what was decoded is not what was encoded: the numbers would mean nothing")

    theirs = zfec.Encoder(ROWS, ROWS + EXTRAS)
    parity = theirs.encode(rows, tuple(range(ROWS, ROWS + EXTRAS)))
    left = rows[EXTRAS:] + list(parity)
    numbers = [*range(EXTRAS, ROWS), *range(ROWS, ROWS + EXTRAS)]

    reader = zfec.Decoder(ROWS, ROWS + EXTRAS)

    def unzfec() -> Any:
        return reader.decode(left, numbers)

    if b"".join(sorted(unzfec())) != b"".join(sorted(rows)):
        raise SystemExit("the peer was not called as it wants to be: the numbers would mean nothing")
    megabytes = len(content) / 1e6
    peers = {
        "encode": megabytes / best(lambda: theirs.encode(rows, tuple(range(ROWS, ROWS + EXTRAS)))),
        "decode": megabytes / best(unzfec),
    }
    ours = {
        ("encode", "kernel"): megabytes / best(lambda: encode(rows, EXTRAS, dice)),
        ("decode", "kernel"): megabytes / best(decode),
        ("encode", "tables"): megabytes / best(lambda: field.combine_portable(lines, rows), REPEAT // 10),
    }
    return [
        {
            "case": f"{what} an event with {EXTRAS} of {ROWS} rows lost, {how}",
            "row_bytes": ROW_BYTES,
            "event_mb_per_cpu_s": round(speed, 1),
            "zfec_mb_per_cpu_s": round(peers[what], 1),
            "ratio_to_zfec": round(speed / peers[what], 2),
        }
        for (what, how), speed in ours.items()
    ]
