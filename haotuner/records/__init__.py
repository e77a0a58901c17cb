"""Records of measurements: stored, resumed, imported, exported."""

from haotuner.records.address import open_store
from haotuner.records.memory import MemoryStore
from haotuner.records.sqlite import SqliteStore
from haotuner.records.store import RecordStore, Session

__all__ = ["MemoryStore", "RecordStore", "Session", "SqliteStore", "open_store"]
