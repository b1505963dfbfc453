"""A full-text index of one table of all shards, in SQLite, that follows their changes.

The position in the stream is stored in the transaction of the rows that it stands for. So the
program may be killed at any moment: started again, it loses no change and applies none twice.

    python examples/search/index.py commerce shop.products products.db    # follows, until Ctrl-C
    sqlite3 products.db "SELECT rowid, name FROM found WHERE name MATCH 'green AND tea'"
"""

import re
import sqlite3
import sys

from shardstream import EventType, StreamPosition, Subscriber, VEvent

# `copy` in place of `earliest` brings the rows that are older than the logs, too.
TABLES = """
PRAGMA journal_mode = WAL;
CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5(name);
CREATE TABLE IF NOT EXISTS place (position TEXT, changes INTEGER);
INSERT INTO place SELECT 'earliest', 0 WHERE NOT EXISTS (SELECT * FROM place);
"""


def apply(index: sqlite3.Connection, event: VEvent) -> None:
    """Apply a change: INSERT and READ (a copied row) have `after`, DELETE `before`, UPDATE both."""
    if event.before is not None:
        index.execute("DELETE FROM found WHERE rowid = ?", (event.before["id"],))
    if event.after is not None:
        row = event.after["id"], event.after["name"]
        index.execute("INSERT OR REPLACE INTO found (rowid, name) VALUES (?, ?)", row)
    if event.type is EventType.ROW:
        index.execute("UPDATE place SET changes = changes + 1")


def store(index: sqlite3.Connection, position: StreamPosition | None) -> None:
    """Store the position, and end the transaction."""
    if position is not None:
        index.execute("UPDATE place SET position = ?", (position.to_string(),))
    index.commit()


def hides_changes(event: VEvent, table: str) -> bool:
    """Tell whether rows may have changed that no event shows: TRUNCATE, DROP, ALTER, a skip."""
    text = (event.statement or "").upper()
    if event.type is not EventType.DDL:
        return event.type is EventType.SKIP
    if table.upper() in text:
        return not text.startswith(("CREATE TABLE", "CREATE INDEX"))
    return re.search(r"DROP\s+(DATABASE|SCHEMA)", text) is not None


def main(keyspace: str, table: str, path: str) -> None:
    """Follow the table. What ends this ends the program; started again, it goes on."""
    index = sqlite3.connect(path)
    index.executescript(TABLES)
    [start] = index.execute("SELECT position FROM place").fetchone()
    with Subscriber.from_settings(
        None, keyspace, start=start, tables=[table], idle_timeout_s=10
    ) as events:
        while True:
            for event in events:
                if hides_changes(event, table.partition(".")[2]):
                    sys.exit(f"{event.shard}: {event.statement}\nremove {path}, and start again")
                apply(index, event)
                if event.last:  # the last change of its transaction on the database
                    store(index, event.position)
            # No change for ten seconds. The position moves on, so that the logs keep what follows.
            store(index, events.position)


if __name__ == "__main__":
    main(*sys.argv[1:])
