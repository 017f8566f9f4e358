"""Runs that outlive their process on one machine: the store in an SQLite file.

One process at a time has the file open, so leases need no expiry: those found when it is opened
belong to a process that has died.
"""

from diptych.stores.sqlite.database import StoreNotOpened
from diptych.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "StoreNotOpened"]
