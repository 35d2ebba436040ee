"""Connections between processes: frames, introductions, control messages, security, finding nodes."""
