"""The audit of a log that still grows: `LiveAudit` decides, `follow` reads files and archives, Spark drives it too."""

from unisono.audit.live.core import BatchReport, LiveAudit
from unisono.audit.live.latencies import Latency
from unisono.audit.live.state import LiveLimits, LiveState, decode_state, encode_state

__all__ = ["BatchReport", "Latency", "LiveAudit", "LiveLimits", "LiveState", "decode_state", "encode_state"]
