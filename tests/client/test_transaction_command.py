"""`millstream transaction`: what it lists and describes, and that it aborts a transaction that hangs, and no other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from millstream import Admin
from millstream.administering.transactions import list_transactions
from millstream.connection import Cluster
from millstream.errors import BadInput
from millstream_broker.replication.partition import Partition
from millstream_harness.background_loop import background_loop
from millstream_harness.command import in_this_process
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.transactions import write

HANGING = 4242
LONG_AGO_MS = 1_700_000_000_000


def millstream(*arguments: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
    """The command, in this process."""
    return in_this_process("transaction", *arguments, "--bootstrap", bootstrap)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path_factory.mktemp("broker")).start() as broker:
        yield broker


def found(broker: InProcessBroker, *arguments: str) -> list[dict[str, object]]:
    ended = millstream(*arguments, "-o", "json", bootstrap=broker.bootstrap)
    assert ended.returncode == 0, ended.stderr
    said: list[dict[str, object]] = json.loads(ended.stdout)
    return said


def refused(broker: InProcessBroker, *arguments: str) -> tuple[int, str]:
    ended = millstream(*arguments, bootstrap=broker.bootstrap)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr.strip().removeprefix("millstream: ")


@pytest.fixture(scope="module")
def producer(broker: InProcessBroker) -> Producer:
    """It has an open transaction in partition 0 of `t`; in partition 1 one hangs, and a record follows."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "mine"})
    idle = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "idle"})
    idle.init_transactions()
    producer.init_transactions()
    Admin(broker.bootstrap).create_topic("t", partitions=2)
    producer.begin_transaction()
    producer.produce("t", b"v", partition=0)
    producer.flush()
    background_loop().run(opened(broker.on_loop.broker.replicas.partition("t", 1)))
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce("t", b"after", partition=1)
    assert plain.flush(60) == 0
    return producer


async def opened(partition: Partition) -> None:
    write(partition, HANGING, timestamp=LONG_AGO_MS)


def test_ids_are_listed_by_each_filter(broker: InProcessBroker, producer: Producer) -> None:
    everything = found(broker, "list")
    assert [(one["transactionalId"], one["state"], one["broker"]) for one in everything] == [
        ("idle", "Empty", 1),
        ("mine", "Ongoing", 1),
    ]
    mine = str(everything[1]["producerId"])
    for filters in (
        ["--state", "Ongoing"],
        ["--producer-id", mine],
        ["--pattern", "m.*"],
        ["--pattern", "m.*", "--state", "Ongoing", "--state", "PrepareAbort", "--producer-id", mine],
    ):
        assert found(broker, "list", *filters) == everything[1:], filters
    for filters in (["--pattern", "m"], ["--state", "PrepareAbort"], ["--producer-id", "1"]):
        assert found(broker, "list", *filters) == [], filters
    assert (
        found(broker, "list", "--older-than", "86400") == everything[:1]
    )  # without a transaction it is endless
    status, said = refused(broker, "list", "--pattern", "(")
    assert (status, said.partition(":")[0]) == (1, "broker 1 cannot list its transactional ids")
    with pytest.raises(BadInput, match='states: there is no state "ongoing": write Empty, Ongoing, '):
        list_transactions(Cluster(broker.bootstrap), states=["ongoing"])


def test_an_id_is_described(broker: InProcessBroker, producer: Producer) -> None:
    (described,) = [found(broker, "describe", "mine")]
    assert isinstance(described, dict)
    started = described.pop("startedMs")
    assert isinstance(started, int)
    assert started > LONG_AGO_MS
    assert described.pop("producerId") is not None
    assert described == {
        "transactionalId": "mine",
        "broker": 1,
        "producerEpoch": 0,
        "state": "Ongoing",
        "timeoutMs": 60_000,
        "partitions": [{"topic": "t", "partition": 0}],
    }
    as_table = millstream("describe", "idle", bootstrap=broker.bootstrap).stdout
    assert as_table.startswith("transactional id idle, Empty, producer id ")
    assert as_table.endswith(", epoch 0, coordinator 1, timeout 60 s, began -\n")
    status, said = refused(broker, "describe", "other")
    assert status == 1
    assert said.startswith('there is no transactional id "other": see millstream transaction list; ')


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            [],
            2,
            "transaction abort: no transaction is named: give --topic, --partition and --start-offset, or"
            " --producer-id",
        ),
        (
            ["--start-offset", "0"],
            2,
            "transaction abort: --start-offset needs a partition: add --topic and --partition",
        ),
        (["--partition", "0", "--start-offset", "0"], 2, "--partition names no topic: add --topic"),
        (
            ["-t", "t", "-p", "1", "--start-offset", "1", "--yes"],
            1,
            "there is no such open transaction: see millstream transaction find-hanging; it may have ended",
        ),
        (
            ["-t", "t", "-p", "0", "--start-offset", "0", "--yes"],
            1,
            'the transaction in t/0 does not hang: it is that of "mine", Ongoing: its coordinator, broker 1, ends it'
            " 60 s after its start at the latest, once it reaches the leaders of all its partitions",
        ),
    ],
    ids=["nothing", "no partition", "no topic", "none begins there", "known"],
)
def test_nothing_else_is_aborted(
    broker: InProcessBroker, producer: Producer, arguments: list[str], status: int, said: str
) -> None:
    assert refused(broker, "abort", *arguments) == (status, said)


def test_a_transaction_that_hangs_is_found_and_aborted(broker: InProcessBroker, producer: Producer) -> None:
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    (hanging,) = found(broker, "find-hanging", "--older-than", "0")  # the other one is known
    assert hanging == {
        "topic": "t",
        "partition": 1,
        "broker": 1,
        "producerId": HANGING,
        "producerEpoch": 0,
        "coordinatorEpoch": -1,
        "startOffset": 0,
        "lastMs": LONG_AGO_MS,
    }
    assert found(broker, "find-hanging", "--topic", "t", "--partition", "0", "--older-than", "0") == []
    assert found(broker, "find-hanging", "--older-than", "9999999999") == []
    assert millstream("find-hanging", bootstrap=broker.bootstrap).stdout.splitlines()[1].split() == [
        "t", "1", "0", "4242", "0", "2023-11-14T22:13:20Z", "1",
    ]  # fmt: skip

    by_producer = ["abort", "--producer-id", str(HANGING)]
    (dry,) = [found(broker, *by_producer, "--dry-run")]
    assert dry == {"transactions": [hanging], "dryRun": True}
    unasked = millstream(*by_producer, bootstrap=broker.bootstrap)
    assert unasked.returncode == 2
    assert (
        "add --yes, or --dry-run. Abort 1 transaction? Consumers never get these records." in unasked.stderr
    )
    assert found(broker, "find-hanging") == [hanging]

    ended = millstream(
        "abort", "-t", "t", "-p", "1", "--start-offset", "0", "--yes", bootstrap=broker.bootstrap
    )
    assert ended.stdout.splitlines()[-1] == "aborted 1 transaction", ended.stderr
    assert found(broker, "find-hanging", "--older-than", "0") == []
    reader.subscribe(["t"])
    message = reader.poll(60)
    assert (message.partition(), message.value()) == (1, b"after")
    reader.close()
    producer.commit_transaction()
    assert found(broker, "list", "--pattern", "mine")[0]["state"] in ("PrepareCommit", "CompleteCommit")
