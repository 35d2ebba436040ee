"""What a replica may be told."""

from msgspec import Struct


class ReplicaConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one replica. All replicas of a set have the same `check_every`."""

    tail_max: int = 1000
    """Own operations that are applied before their order is known. Further ones wait, without a tentative answer.
    Price: what is undone and done again when another replica's operation comes first."""
    tail_max_s: float = 1.0
    """When nothing has come in the order for so long, up to twice that, what is applied before it is taken back and
    waits: a transaction that stays open keeps PostgreSQL from cleaning up. Price: tentative reads do not show it."""
    batch_max: int = 1000
    """Operations per transaction on disk. Price: how long other readers of the file see the state before it."""
    check_every: int = 10_000
    """Replicas compare a hash of their whole state after this many operations; 0: only when `check` is called.
    Price: one reading of the database each time."""
    check_wait_s: float = 5.0
    """How long hashes of others are waited for before they are compared with the own one."""
    steps_max: int = 100_000_000
    """Steps of SQLite's virtual machine that one operation may take when it is first tried; beyond it is refused."""
    publish_s: float = 60.0
    """How long an operation without an outcome is published again; then it ends as unknown."""
