"""Exactly once into PostgreSQL: results and positions in one transaction.

    pip install 'psycopg[binary]'
    python exactly_once_postgresql.py localhost:9092 flights postgresql://USER@HOST/DATABASE

Counts flights by carrier, the text before the first space of each message, as exactly_once.py does with SQLite. Here
any number of processes write at the same time. Each transaction first locks the positions of its partitions, so of two
processes that hold the same messages for a moment, the second one finds them counted, and changes nothing. A password
belongs in PGPASSWORD or ~/.pgpass.

If the connection to the database is lost, the process ends with an error. Start it again, as Kubernetes does: the
database knows whether the last transaction was stored.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

import psycopg

import millstream
from millstream.topics import describe_topic

LOCK = "SELECT pg_advisory_xact_lock(hashtext('millstream examples: exactly_once'))"
SCHEMA = """
CREATE TABLE IF NOT EXISTS positions (
    topic_id text, partition integer, next_offset bigint NOT NULL, PRIMARY KEY (topic_id, partition)
);
CREATE TABLE IF NOT EXISTS carriers (carrier text PRIMARY KEY, flights bigint NOT NULL);
"""


class Store:
    """The database. Positions belong to a topic's id: a recreated topic starts at its beginning."""

    def __init__(self, address: str, topic_id: str) -> None:
        self._address, self._topic_id = address, topic_id
        self._database = psycopg.connect(address, autocommit=True)
        with self._database.transaction():
            self._database.execute(LOCK)  # CREATE TABLE IF NOT EXISTS fails if two processes run it at once
            self._database.execute(SCHEMA)

    def positions(self, partitions: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        """Start positions; a connector calls it with its new partitions, in any thread."""
        with psycopg.connect(self._address) as database:
            known: dict[int, int] = dict(
                database.execute(
                    "SELECT partition, next_offset FROM positions WHERE topic_id = %s", [self._topic_id]
                ).fetchall()
            )
        return {(topic, number): known.get(number, 0) for topic, number in partitions}

    def count(self, batch: Sequence[millstream.Message]) -> None:
        """Count messages and move the positions past them, both or neither; leave out those counted before."""
        partitions = sorted({message.partition for message in batch})
        with self._database.transaction(), self._database.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO positions VALUES (%s, %s, 0) ON CONFLICT DO NOTHING",
                [(self._topic_id, partition) for partition in partitions],
            )
            # In order, here and below: two transactions that lock the same rows in different orders block each other.
            cursor.execute(
                "SELECT partition, next_offset FROM positions WHERE topic_id = %s AND partition = ANY(%s) "
                "ORDER BY partition FOR UPDATE",
                [self._topic_id, partitions],
            )
            known: dict[int, int] = dict(cursor.fetchall())
            new = [message for message in batch if message.offset >= known[message.partition]]
            cursor.executemany(
                "INSERT INTO carriers VALUES (%s, %s) "
                "ON CONFLICT (carrier) DO UPDATE SET flights = carriers.flights + excluded.flights",
                sorted(Counter(message.value.partition(" ")[0] for message in new).items()),
            )
            positions = {message.partition: message.position.offset for message in new}  # the last of each
            cursor.executemany(
                "UPDATE positions SET next_offset = %s WHERE topic_id = %s AND partition = %s",
                [(offset, self._topic_id, partition) for partition, offset in sorted(positions.items())],
            )


def main(bootstrap: str, topic: str, address: str) -> None:
    cluster = millstream.Cluster(bootstrap)
    store = Store(address, describe_topic(cluster, topic).topic_id)
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
