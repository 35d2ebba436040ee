"""The archive: delivered order, kept. Immutable Arrow segments, a manifest that says which of them count, a tail.

A writer appends what a subscriber of total order was notified of; readers (clients, replicas, Spark) see sealed
segments only. `seq` is the archive's own sequence, from 1, without holes; it is the offset of everything downstream.
Because the archive is a subscriber like any other, its order agrees with every subscriber's; so a prefix of the
archive is a consistent cut, and replay may go over to live delivery at any prefix (see `Archive.prefix`).
"""
