"""Reading a SQLite database through, table by table, to say which one is damaged. Changes nothing,
and works beside a running server."""

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple

from ksana.store.sql.core.tally import summary

_STEPS: Final = 10_000
"""Instructions of SQLite between two looks at the clock: a few hundred microseconds."""


class Damage(NamedTuple):
    """A table that cannot be read, or not relied on."""

    table: str
    words: str


class Examined(NamedTuple):
    """What a look came to; of `tables` it has seen `seen`."""

    tables: int
    seen: int
    damages: list[Damage]


def find_damage(path: Path, within_s: float) -> Examined:
    """Look at every table and its indexes, for so long at most. Raise sqlite3.Error if not even the
    list of tables can be read."""
    give_up_at = time.monotonic() + within_s
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        connection.set_progress_handler(lambda: time.monotonic() > give_up_at, _STEPS)
        names = [str(row[0]) for row in rows]
        damages: list[Damage] = []
        for seen, name in enumerate(names):
            try:
                words = _examine(connection, name)
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                    return Examined(len(names), seen, damages)
                words = summary(error)
            if words:
                damages.append(Damage(name, words))
    return Examined(len(names), len(names), damages)


def _examine(connection: sqlite3.Connection, table: str) -> str:
    """What is wrong with a table; empty if nothing is."""
    quoted = '"' + table.replace('"', '""') + '"'
    found = connection.execute(f"PRAGMA integrity_check({quoted})").fetchone()
    if found is not None and found[0] != "ok":
        return summary(Exception(found[0]))
    # A text that is not UTF-8 is sound to SQLite; the server could not read it.
    for _ in connection.execute(f"SELECT * FROM {quoted}"):
        pass
    return ""
