"""The exactly-once examples with SQLite and PostgreSQL: their processes are killed while they work."""

from __future__ import annotations

import importlib
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import psycopg
import pytest

import millstream
from millstream.groups import describe_group
from millstream.topics import create_topic, delete_topics
from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.postgres import DATABASE, PASSWORD, USER, Postgres, postgres

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples/streams"
CARRIERS = ("UA", "AA", "B6", "DL")
FLIGHTS = "SELECT carrier, flights FROM carriers"


class Database(Protocol):
    """What an example writes to."""

    example: str
    address: str
    """The example's third argument."""

    def counted(self) -> Counter[str]:
        """Flights by carrier."""


class Sqlite:
    example = "exactly_once"

    def __init__(self, path: Path) -> None:
        self.address = str(path)

    def counted(self) -> Counter[str]:
        database = sqlite3.connect(self.address, timeout=30)
        try:
            return Counter(dict(database.execute(FLIGHTS).fetchall()))
        except sqlite3.OperationalError:  # no process has made the table yet
            return Counter()
        finally:
            database.close()


class PostgreSql:
    example = "exactly_once_postgresql"

    def __init__(self, server: Postgres, database: str) -> None:
        self._address = f"postgresql://{USER}:{quote(PASSWORD)}@127.0.0.1:{server.port}"
        with psycopg.connect(f"{self._address}/{DATABASE}", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')  # type: ignore[call-overload]
        self.address = f"{self._address}/{database}"

    def counted(self) -> Counter[str]:
        with psycopg.connect(self.address) as database:
            try:
                return Counter(dict(database.execute(FLIGHTS).fetchall()))
            except psycopg.errors.UndefinedTable:
                return Counter()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "SQLite":
        return Sqlite(tmp_path / "flights.db")
    return PostgreSql(request.getfixturevalue("server"), tmp_path.name)


def shares(cluster: millstream.Cluster) -> list[int]:
    """How many partitions each process owns."""
    return [len(member.partitions) for member in describe_group(cluster, "carriers").members]


def test_each_message_counts_once(start_broker: Callable[..., InProcessBroker], database: Database) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"})
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "flights", partitions=4)
    dice, sent = random.Random(7), Counter[str]()

    def send(flights: int) -> None:
        with millstream.Producer(cluster) as producer:
            for number in range(flights):
                carrier = dice.choice(CARRIERS)
                sent[carrier] += 1
                producer.send("flights", f"{carrier} {number}", partition=number % 4)

    def start() -> subprocess.Popen[bytes]:
        example = EXAMPLES / f"{database.example}.py"
        return subprocess.Popen([sys.executable, example, broker.bootstrap, "flights", database.address])

    send(2000)
    processes = [start(), start()]
    try:
        for _ in range(3):
            enough = database.counted().total() + 50
            send(5000)  # for the process to be killed while it counts them
            until(lambda enough=enough: database.counted().total() >= enough, "it counts", 90)
            processes[0].kill()
            processes.pop(0).wait()
            processes.append(start())
        until(lambda: database.counted().total() >= sent.total(), "all is counted", 120)
        assert database.counted() == sent
        until(lambda: shares(cluster) == [2, 2], "both processes own partitions", 120)
        for process in processes:
            process.terminate()
            assert process.wait(60) == 0
        processes.clear()
        delete_topics(cluster, ["flights"])
        create_topic(cluster, "flights", partitions=4)
        send(40)
        processes.append(start())
        until(lambda: database.counted().total() >= sent.total(), "the new topic is counted, too", 120)
        assert database.counted() == sent
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_messages_that_another_process_has_counted_change_nothing(
    start_broker: Callable[..., InProcessBroker], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner still holds messages that the new owner counts, too, in other batches."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    store_of = importlib.import_module(database.example).Store
    broker = start_broker({"group.initial.rebalance.delay.ms": "0"})
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "flights", partitions=1)
    with millstream.Producer(cluster) as producer:
        for flight in ("UA 1", "AA 2", "UA 3"):
            producer.send("flights", flight)
    held: list[millstream.Message] = []
    with millstream.connect(cluster, group="g", value_deserializer=millstream.Text()) as connector:
        (stream,) = connector.create_message_streams({"flights": 1})["flights"]
        for batch in stream.batches():
            held += batch
            if len(held) == 3:
                break
    slow, owner = store_of(database.address, "id"), store_of(database.address, "id")
    for store, batch in ((owner, held[:1]), (slow, held[:2]), (owner, held), (slow, held), (slow, held[1:2])):
        store.count(batch)
    assert database.counted() == {"UA": 2, "AA": 1}
    assert slow.positions([("flights", 0), ("flights", 1)]) == {("flights", 0): 3, ("flights", 1): 0}
    for store in (slow, owner):
        store._database.close()
