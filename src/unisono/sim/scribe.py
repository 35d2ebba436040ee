"""SCRIBE on Pastry: a rendezvous multicast tree over prefix routing (thesis, sections 3.5 and 5.5)."""

from typing import Any

ScribePaths: Any = None
