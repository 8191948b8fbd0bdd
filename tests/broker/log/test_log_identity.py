"""Recreated topics: no file beside the old topic's log applies to the new one's."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import STABLE, ClusterProcesses, until
from millstream_harness.ledger import read
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records

pytestmark = pytest.mark.soak

StartBroker = Callable[..., BrokerProcess]

SOON = {
    "log.flush.offset.checkpoint.interval.ms": "50",
    "replica.high.watermark.checkpoint.interval.ms": "50",
}
NEVER = dict.fromkeys(SOON, "3600000")
"""No checkpoint replaces the predecessor's entries before the kill."""


def values(name: str, count: int) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


def send(broker: BrokerProcess, topic: str, wanted: Sequence[bytes], *, acks: int = 1) -> None:
    with Wire(broker.bootstrap) as wire:
        for start in range(0, len(wanted), 50):
            answer = wire.produce(topic, [record(one) for one in wanted[start : start + 50]], acks=acks)
            assert answer.error_code == 0


def make(bootstrap: str, topic: str, assignment: list[int] | None = None, **config: str) -> None:
    """Create the topic as soon as its name is free."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    replicas = {"replica_assignment": [assignment]} if assignment else {"replication_factor": 1}
    new = NewTopic(topic, 1, config=settings, **replicas)

    def made() -> bool:
        with contextlib.suppress(KafkaException):
            admin.create_topics([new])[topic].result(60)
            return True
        return False

    until(made, f"{topic} is made")


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(60)


def delete_records(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deleted = admin.delete_records([TopicPartition(topic, 0, offset)])
    assert next(iter(deleted.values())).result(60).low_watermark == offset


def checkpointed(broker: BrokerProcess, name: str, line: str) -> None:
    """Wait until a line of a broker's checkpoint matches."""
    path = broker.data / name
    eventually(
        lambda: path.read_text() if path.exists() else "",
        lambda text: re.search(f"^{line}$", text, re.MULTILINE) is not None,
        f"{name} has {line}",
    )


@pytest.mark.parametrize("count", [800, 2000])
def test_a_topic_made_anew_keeps_its_records_through_a_kill(start_broker: StartBroker, count: int) -> None:
    """Fewer records than the predecessor's log start, and more."""
    broker = start_broker(SOON)
    make(broker.bootstrap, "t")
    send(broker, "t", values("old", 2000))
    delete_records(broker.bootstrap, "t", 1500)
    checkpointed(broker, "log-start-offset-checkpoint", "t 0 1500")
    broker.stop()
    broker.config |= NEVER
    broker.start()
    delete(broker.bootstrap, "t")
    make(broker.bootstrap, "t")
    send(broker, "t", values("new", count))
    broker.kill()
    broker.start()
    assert read(broker.bootstrap, "t", 0) == list(enumerate(values("new", count)))


def test_a_topic_made_anew_keeps_its_records_in_a_cluster(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """A replica is killed and returns; then the leader stops: the replica leads, with every acknowledged record."""
    with ClusterProcesses(tmp_path, config=STABLE | SOON, zookeeper=shared_zookeeper) as cluster:
        make(cluster.bootstrap, "t", [1, 2, 3])
        cluster.await_in_sync("t")
        send(cluster.brokers[1], "t", values("old", 2000), acks=-1)
        delete_records(cluster.bootstrap, "t", 1500)
        for one in cluster.brokers.values():
            checkpointed(one, "log-start-offset-checkpoint", "t 0 1500")
            checkpointed(one, "replication-offset-checkpoint", "t 0 2000")
        for one in cluster.brokers.values():
            one.stop()
            one.config |= NEVER
            one.start()
        cluster.await_in_sync("t")
        delete(cluster.bootstrap, "t")
        make(cluster.bootstrap, "t", [1, 2, 3])
        cluster.await_in_sync("t")
        until(lambda: cluster.leader("t") is cluster.brokers[1], "the first replica leads")
        send(cluster.brokers[1], "t", values("new", 800), acks=-1)
        cluster.brokers[2].kill()
        cluster.await_in_sync("t", 2)
        cluster.brokers[2].start()
        cluster.await_in_sync("t")
        cluster.brokers[1].stop()
        cluster.brokers[3].stop()
        until(lambda: cluster.leader("t") is cluster.brokers[2], "the one that was killed leads")
        assert read(cluster.brokers[2].bootstrap, "t", 0) == list(enumerate(values("new", 800)))


def of_key(wire: Wire, topic: str, key: bytes) -> list[Record]:
    """A key's records, as a reader of the whole topic gets them."""
    found: list[Record] = []
    offset, end = 0, wire.end_offset(topic)
    while offset < end:
        records = wire.fetch(topic, offset, partition_max_bytes=1_000_000).records
        assert isinstance(records, memoryview)
        for position, header in iter_batches(records):
            found += read_records(records[position : position + header.size])
            offset = header.next_offset
    return [one for one in found if one.key == key]


def test_a_deleted_key_stays_deleted_in_a_compacted_topic_made_anew(start_broker: StartBroker) -> None:
    """The predecessor was compacted far beyond: a tombstone is not removed before the value that it deletes."""
    cleaning = {"log.cleaner.backoff.ms": "20", "log.cleaner.min.cleanable.ratio": "0.01"}
    broker = start_broker(SOON | cleaning)
    config = {"cleanup_policy": "compact", "segment_bytes": "20000", "delete_retention_ms": "0"}
    filler = [Record(b"filler %d" % (number % 7), b"x" * 100, 1) for number in range(50)]
    make(broker.bootstrap, "c", **config)
    with Wire(broker.bootstrap) as wire:
        for _ in range(60):
            assert wire.produce("c", filler).error_code == 0
    checkpointed(broker, "cleaner-offset-checkpoint", r"c 0 [12]\d\d\d")
    broker.stop()
    broker.config |= NEVER | {"log.cleaner.enable": "false"}
    broker.start()
    delete(broker.bootstrap, "c")
    make(broker.bootstrap, "c", **config)
    with Wire(broker.bootstrap) as wire:
        assert wire.produce("c", [Record(b"gone", b"value", 1)]).error_code == 0
        for _ in range(10):
            assert wire.produce("c", filler).error_code == 0
        assert wire.produce("c", [Record(b"gone", None, 1)]).error_code == 0
        for _ in range(10):
            assert wire.produce("c", filler).error_code == 0
    broker.kill()
    broker.config["log.cleaner.enable"] = "true"
    broker.start()
    with Wire(broker.bootstrap) as wire:

        def values_of_key() -> list[bytes | None]:
            assert wire.produce("c", filler).error_code == 0
            return [one.value for one in of_key(wire, "c", b"gone")]

        eventually(values_of_key, lambda found: None not in found, "the tombstone is gone")
        assert values_of_key() == []


def batch_of(sequence: int) -> bytes:
    return build_batch([record(b"%d" % sequence)], producer_id=77, producer_epoch=0, base_sequence=sequence)


def test_a_follower_that_starts_anew_forgets_its_producers(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """It misses records that are then deleted; after a kill it leads, and accepts the next batch."""
    with ClusterProcesses(tmp_path, config=STABLE | SOON, zookeeper=shared_zookeeper) as cluster:
        first, second = cluster.brokers[1], cluster.brokers[2]
        make(cluster.bootstrap, "t", [1, 2, 3])
        cluster.await_in_sync("t")
        until(lambda: cluster.leader("t") is first, "the first replica leads")
        with Wire(first.bootstrap) as wire:
            for sequence in range(10):
                assert wire.produce("t", batch_of(sequence), acks=-1).error_code == 0
            second.stop()
            cluster.await_in_sync("t", 2)
            for sequence in range(10, 20):
                assert wire.produce("t", batch_of(sequence), acks=-1).error_code == 0
            delete_records(cluster.bootstrap, "t", 20)
            second.start()
            cluster.await_in_sync("t")
            assert "t-0: restarts at offset 20" in second.said()
        second.kill()
        cluster.await_in_sync("t", 2)
        second.start()
        cluster.await_in_sync("t")
        first.kill()
        until(lambda: cluster.leader("t") is second, "the one that was killed leads")
        with Wire(second.bootstrap) as wire:
            cluster.await_in_sync("t", 2)
            answer = wire.produce("t", batch_of(20), acks=-1)
            assert (answer.error_code, answer.base_offset) == (0, 20)


class SlowDisk(BrokerProcess):
    """Each fsync of the topic `slow` creates the file `entered`, then waits for the file `leave` and removes it."""

    @property
    def command(self) -> list[str]:
        program = (
            "import os, sys, time\n"
            "from millstream_broker import main\n"
            "fsync = os.fsync\n"
            "def slow(file):\n"
            "    fd = file if isinstance(file, int) else file.fileno()\n"
            "    if os.readlink(f'/proc/self/fd/{fd}').endswith('/slow-0/00000000000000000000.log'):\n"
            f"        open({str(self.folder / 'entered')!r}, 'w').close()\n"
            f"        while not os.path.exists({str(self.folder / 'leave')!r}):\n"
            "            time.sleep(0.01)\n"
            f"        os.unlink({str(self.folder / 'leave')!r})\n"
            "    fsync(fd)\n"
            "os.fsync = slow\n"
            "sys.exit(main.main())\n"
        )
        return [sys.executable, "-c", program, *super().command[1:]]

    def entered(self) -> None:
        eventually((self.folder / "entered").exists, bool, "the thread is in the fsync")
        (self.folder / "entered").unlink()

    def leave(self) -> None:
        (self.folder / "leave").touch()


def test_a_flush_that_meets_a_deleted_topic(tmp_path: Path) -> None:
    """The flushing thread is busy with another log while the topic is deleted: that is no disk failure."""
    with SlowDisk(tmp_path) as broker:
        make(broker.bootstrap, "slow", flush_ms="1")
        make(broker.bootstrap, "gone", flush_ms="0")
        with Wire(broker.bootstrap) as wire:
            assert wire.produce("slow", [record("x")]).error_code == 0
            broker.entered()
            assert wire.produce("gone", [record("x")]).error_code == 0
            delete(broker.bootstrap, "gone")
            eventually(lambda: list(broker.data.glob("gone-0*")), lambda left: not left, "its folder is gone")
            broker.leave()
            assert wire.produce("slow", [record("x")]).error_code == 0
            broker.entered()  # the next round
            assert wire.produce("slow", [record("x")]).error_code == 0
        assert "offline" not in broker.said()


def test_a_directory_was_away_while_its_topic_was_made_anew(tmp_path: Path) -> None:
    """The directory returns, so there are two logs of one name: the old one, which nobody deleted here, is a stray."""
    first, second = tmp_path / "first", tmp_path / "second"
    broker = BrokerProcess(tmp_path)
    broker.config["log.dirs"] = f"{first},{second}"
    with broker:
        names = ["a", "b"]
        for name in names:
            make(broker.bootstrap, name)
        (away,) = [name for name in names if (second / f"{name}-0").exists()]
        send(broker, away, values("old", 20))
        broker.stop()
        second.rename(tmp_path / "unplugged")
        second.touch()
        broker.start()
        delete(broker.bootstrap, away)
        make(broker.bootstrap, away)
        send(broker, away, values("new", 8))
        broker.stop()
        second.unlink()
        (tmp_path / "unplugged").rename(second)
        broker.start()
        assert read(broker.bootstrap, away, 0) == list(enumerate(values("new", 8)))
        eventually(lambda: list(second.glob(f"{away}-0.*-stray")), bool, "the old log is a stray")
