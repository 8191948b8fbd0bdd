"""Exactly once into SQLite: results and positions in one transaction.

    python exactly_once.py localhost:9092 flights flights.db

Counts flights by carrier, the text before the first space of each message. The database stores the positions,
so the group needs no commits, and a process may be killed at any time: messages whose transaction was not stored are
read again. Two processes may even count the same message for a moment, if one is slow to notice that it has lost the
partition: a transaction counts a message only if no other has, so the second one changes nothing.

A transaction costs a write to the disk, however many messages it has, so each counts a batch of them.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
import threading
from collections import Counter
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

    def count(self, batch: Sequence[millstream.Message]) -> None:
        """Count messages and move the positions past them, both or neither; leave out those counted before."""
        self._database.execute("BEGIN IMMEDIATE")  # no other process writes until the end of this transaction
        with self._database:
            rows = self._database.execute(
                "SELECT partition, offset FROM positions WHERE topic_id = ?", (self._topic_id,)
            )
            known: dict[int, int] = dict(rows.fetchall())
            new = [message for message in batch if message.offset >= known.get(message.partition, 0)]
            self._database.executemany(
                "INSERT INTO carriers VALUES (?, ?) "
                "ON CONFLICT (carrier) DO UPDATE SET flights = flights + excluded.flights",
                Counter(message.value.partition(" ")[0] for message in new).items(),
            )
            positions = {message.partition: message.position.offset for message in new}  # the last of each
            self._database.executemany(
                "INSERT INTO positions VALUES (?, ?, ?) "
                "ON CONFLICT (topic_id, partition) DO UPDATE SET offset = excluded.offset",
                [(self._topic_id, partition, offset) for partition, offset in positions.items()],
            )


def main(bootstrap: str, topic: str, path: str) -> None:
    cluster = millstream.Cluster(bootstrap)
    store = Store(path, describe_topic(cluster, topic).topic_id)
    with millstream.connect(
        cluster,
        group="carriers",
        commit="manual",
        positions=store.positions,
        value_deserializer=millstream.Text(),
        session_timeout_s=6,
    ) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for sign in (signal.SIGINT, signal.SIGTERM):  # the stream ends, and the group rebalances at once
            signal.signal(sign, lambda *_: threading.Thread(target=connector.close).start())
        for batch in stream.batches(1000):
            store.count(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
