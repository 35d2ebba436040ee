"""The node side: one process with its roles (sequencer, overlay broker, adoption; the archive has its own room)."""
