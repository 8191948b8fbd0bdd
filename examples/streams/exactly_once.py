"""Exactly once into SQLite: results and positions in one transaction.

    python exactly_once.py localhost:9092 flights flights.db

Counts flights by carrier, the text before the first space of each message. The database stores the positions,
so the group needs no commits, and a process may be killed at any time: messages whose transaction was not stored are
read again. Two processes may even count the same message for a moment, if one is slow to notice that it has lost the
partition: a transaction counts a message only if no other has, so the second one changes nothing.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
import threading
from collections.abc import Mapping, Sequence

import millstream
from millstream.topics import describe_topic

SCHEMA = """
CREATE TABLE IF NOT EXISTS positions (
    topic_id TEXT, partition INTEGER, offset INTEGER NOT NULL, PRIMARY KEY (topic_id, partition)
);
CREATE TABLE IF NOT EXISTS carriers (carrier TEXT PRIMARY KEY, flights INTEGER NOT NULL);
"""


class Store:
    """The database. Positions belong to a topic's id: a recreated topic starts at its beginning."""

    def __init__(self, path: str, topic_id: str) -> None:
        self._path, self._topic_id = path, topic_id
        self._database = self._connect()
        self._database.executescript(SCHEMA)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    def positions(self, partitions: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        """Start positions; a connector calls it with its new partitions, in any thread."""
        database = self._connect()
        rows = database.execute(
            "SELECT partition, offset FROM positions WHERE topic_id = ?", (self._topic_id,)
        )
        known: dict[int, int] = dict(rows.fetchall())
        database.close()
        return {(topic, number): known.get(number, 0) for topic, number in partitions}

    def count(self, message: millstream.Message) -> None:
        """Count a message and move the position past it, both or neither; do nothing if it was counted before."""
        at = (self._topic_id, message.partition)
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO positions VALUES (?, ?, 0)", at)
            moved = self._database.execute(
                "UPDATE positions SET offset = ? WHERE topic_id = ? AND partition = ? AND offset <= ?",
                (message.position.offset, *at, message.offset),
            )
            if moved.rowcount:
                self._database.execute(
                    "INSERT INTO carriers VALUES (?, 1) ON CONFLICT (carrier) DO UPDATE SET flights = flights + 1",
                    (message.value.partition(" ")[0],),
                )


def main(bootstrap: str, topic: str, path: str) -> None:
    cluster = millstream.Cluster(bootstrap)
    store = Store(path, describe_topic(cluster, topic).topic_id)
    connector = millstream.connect(
        cluster,
        group="carriers",
        commit="manual",
        positions=store.positions,
        value_deserializer=millstream.Text(),
        session_timeout_s=6,
    )
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    for sign in (signal.SIGINT, signal.SIGTERM):  # the stream ends, and the group rebalances at once
        signal.signal(sign, lambda *_: threading.Thread(target=connector.close).start())
    for message in stream:
        store.count(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
