"""The lease of a stream whose coordinator is a broker: what renews it, how it ends, and how the stream goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.consuming import lease as lease_module
from millstream.consuming import stream as stream_module
from millstream.consuming.group import GroupMembership
from millstream.consuming.lease import SHARE
from millstream.consuming.proofs import MOST
from millstream.groups import committed_offsets
from millstream.topics import create_topic
from millstream_harness.cluster import until
from millstream_harness.gate import Gate
from millstream_harness.gated_cluster import GatedCluster
from millstream_harness.scenario import unique
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

LONGEST_METADATA = 10_000
COUNT = 2500
"""More messages than a stream reads while its lease lasts."""


@pytest.fixture(scope="module")
def gated(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatedCluster]:
    config = {"group.min.session.timeout.ms": "1000"}
    with GatedCluster(tmp_path_factory.mktemp("lease"), 1, config, zookeeper=shared_zookeeper) as cluster:
        yield cluster


class Reader:
    """A stream in this process that reaches the broker through the gate; a thread iterates over it."""

    def __init__(self, gated: GatedCluster, topic: str, **options: Any) -> None:
        self.gate: Gate = gated.gates[1]
        self.group = unique("group")
        self.offsets: list[int] = []
        self.takes = 0
        self.connector = millstream.connect(gated.gated_bootstrap, group=self.group, **options)
        (self.stream,) = self.connector.create_message_streams({topic: 1})[topic]
        assert isinstance(self.stream._membership, GroupMembership)
        self.proofs = self.stream._membership.proofs
        take = self.stream.take

        def counted(partitions: Any) -> None:
            self.takes += 1
            take(partitions)

        self.stream.take = counted  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        for message in self.stream:
            self.offsets.append(message.offset)
            time.sleep(0.005)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.mend()
        self.connector.close()
        self._thread.join()

    @property
    def waits(self) -> bool:
        return self.stream.patience.uncertain_since > 0


@pytest.fixture
def topic(gated: GatedCluster) -> str:
    name = unique("lease")
    create_topic(millstream.Cluster(gated.bootstrap), name, partitions=1)
    return name


def fill(gated: GatedCluster, topic: str, count: int) -> None:
    with millstream.Producer(gated.bootstrap) as producer:
        for _ in range(count):
            producer.send(topic, b"")


def test_an_answer_proves_what_was_true_when_its_request_was_sent(gated: GatedCluster, topic: str) -> None:
    with Reader(gated, topic, session_timeout_s=30) as reader:
        until(lambda: reader.proofs.lease.until, "the coordinator has confirmed it")
        lease, renewed = reader.proofs.lease, dict[float, float]()
        renew = lease.renew

        def noted(session: int, sent_at: float, timeout_s: float) -> None:
            renew(session, sent_at, timeout_s)
            renewed[sent_at] = lease.until

        lease.renew = noted  # type: ignore[method-assign]
        reader.gate.hold_answers()
        sent: list[float] = []
        until(
            lambda: sent.extend(at for _, at in [*reader.proofs._asked.values()]) or sent,
            "a request is on its way",
        )
        time.sleep(0.1)  # the answer comes later than its request was sent
        reader.gate.flow()
        until(lambda: sent[0] in renewed, "it is answered")
        assert renewed[sent[0]] == sent[0] + 30 * SHARE


def test_a_member_that_is_confirmed_again_goes_on(
    gated: GatedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease ends, it keeps only a few messages in memory, and it goes on where it was, as the same member."""
    monkeypatch.setattr(stream_module, "BATCH", 4)
    monkeypatch.setattr(lease_module, "SHARE", 0.2)  # so the coordinator keeps it for long after its lease
    caplog.set_level(logging.INFO, "millstream.streams")
    with Reader(gated, topic, session_timeout_s=40) as reader:
        fill(gated, topic, COUNT)
        until(lambda: len(reader.offsets) > 20, "it is at work")
        reader.gate.hold_answers()
        held = len(reader.offsets)
        until(lambda: reader.waits, "its lease ends", 60)
        stopped = len(reader.offsets)
        assert held < stopped < COUNT, "it went on while its lease lasted"
        until(lambda: "so no message is returned" in caplog.text, "it says so")
        assert len(reader.stream._batch) < 20
        assert len(reader.offsets) == stopped, "it waits"
        reader.gate.flow()
        until(lambda: len(reader.offsets) == COUNT, "it has read all", 90)
        assert f"{topic}: continues with partitions 0" in caplog.text
        assert reader.takes == 1, "it is the same member"
        assert reader.offsets == list(range(COUNT))


def test_a_lapse_is_not_noticed(gated: GatedCluster, topic: str) -> None:
    """A cut that is shorter than what is left of the lease does not stop a stream."""
    with Reader(gated, topic, session_timeout_s=30) as reader:
        fill(gated, topic, 1000)
        until(lambda: len(reader.offsets) > 20, "it is at work")
        reader.gate.stall()
        before = len(reader.offsets)
        until(lambda: len(reader.offsets) > before + 100, "it goes on")
        reader.gate.flow()
        until(lambda: len(reader.offsets) == 1000, "it has read all")
        assert reader.takes == 1


def test_a_message_that_takes_too_long(
    gated: GatedCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The group may have gone on without the stream, so it joins anew; it repeats what is not committed."""
    fill(gated, topic, 10)
    options: dict[str, Any] = {"session_timeout_s": 30, "processing_timeout_s": 30}
    with millstream.connect(gated.bootstrap, group=unique("group"), **options) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        messages = iter(stream)
        offsets = [next(messages).offset]
        with stream.turns:  # as if the message had taken so long
            stream._seen -= 100
            stream._due = 0.0
        offsets += [message.offset for message in islice(messages, 9)]
        assert "rejoining the group" in caplog.text
        assert sorted(offsets)[-1] >= 8
        assert set(range(max(offsets))) <= set(offsets)


def test_brokers_that_store_long_metadata(gated: GatedCluster, topic: str) -> None:
    """The requests become longer until they are refused; until then they store where the stream began."""
    config = {"offset.metadata.max.bytes": str(LONGEST_METADATA)}
    with GatedCluster(Path(gated.folder / "long"), 1, config, zookeeper=gated.zookeeper) as cluster:
        create_topic(millstream.Cluster(cluster.bootstrap), topic, partitions=1)
        fill(cluster, topic, 500)
        with Reader(cluster, topic, session_timeout_s=6, commit="manual") as reader:
            until(lambda: len(reader.offsets) == 500, "it has read all")
            until(lambda: reader.proofs._length > LONGEST_METADATA, "requests are refused")
            number = reader.proofs._number
            until(lambda: reader.proofs._number > number + 2, "more requests are sent")
            assert reader.proofs._length < MOST
            assert committed_offsets(millstream.Cluster(cluster.bootstrap), reader.group) == {(topic, 0): 0}
