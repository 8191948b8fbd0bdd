"""A stream that must rejoin its group in the middle of a rebalance.

One member is paused, so the rebalance waits for it, and librdkafka postpones leaving the group until it ends.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream.consuming.group import GroupMembership
from millstream.groups import describe_group
from millstream.topics import create_topic
from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import until
from millstream_harness.scenario import unique
from millstream_harness.stream_member import StreamMember, all_events

pytestmark = pytest.mark.soak

PARTITIONS = 6
SESSION_S = 120.0
"""Longer than the test: no member is removed from the group for its silence."""


class Member:
    """A stream in this process with a thread that iterates over it; `seen` has each message's partition and offset."""

    def __init__(self, cluster: millstream.Cluster, group: str, topic: str) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.join_state, self.state_at = "", 0.0
        config = {"statistics.interval.ms": 50, "stats_cb": self._note}
        self.connector = millstream.connect(
            cluster,
            group=group,
            start="earliest",
            commit="manual",
            session_timeout_s=SESSION_S,
            config=config,
        )
        (self.stream,) = self.connector.create_message_streams({topic: 1})[topic]
        self._thread = threading.Thread(target=self._iterate)
        self._thread.start()

    def _note(self, statistics: str) -> None:
        found = json.loads(statistics)
        self.join_state, self.state_at = found["cgrp"]["join_state"], found["ts"] / 1e6

    def _iterate(self) -> None:
        for message in self.stream:
            self.seen.add((message.partition, message.offset))

    def sleep_through_its_session(self) -> None:
        """As if the process had been paused."""
        membership = self.stream._membership
        assert isinstance(membership, GroupMembership)
        with self.stream.turns:
            membership.proofs.lease.until -= SESSION_S
            self.stream._due = 0.0

    def lose_a_call_back(self) -> None:
        """As if an interrupt had come when librdkafka passed on partitions."""
        with self.stream.turns:
            self.stream._membership._midway = True  # type: ignore[attr-defined]

    def is_iterating(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self.connector.close()
        self._thread.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millstream.Cluster]:
    config = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("rejoin"), config) as broker:
        yield millstream.Cluster(broker.bootstrap)


class Rebalance:
    """Three members; the group waits for the second, which is paused while the third joins."""

    def __init__(self, cluster: millstream.Cluster, folder: Path) -> None:
        self.cluster, self.topic, self.group = cluster, unique("rejoin"), unique("group")
        create_topic(cluster, self.topic, partitions=PARTITIONS)
        self._sent: set[tuple[int, int]] = set()
        options = {"session_timeout_s": SESSION_S}
        self.paused, self.last = (
            StreamMember(folder, number, cluster.bootstrap, self.group, self.topic, options)
            for number in range(2)
        )
        self.member = Member(cluster, self.group, self.topic)

    def begin(self) -> None:
        self.paused.start()
        until(lambda: len(self.member.stream.partitions) == PARTITIONS // 2, "both share the partitions")
        self.check_all_is_read()
        self.paused.pause()
        self.last.start()
        until(
            lambda: describe_group(self.cluster, self.group).state == "PreparingRebalance",
            "a rebalance begins",
        )
        begun, member = time.monotonic(), self.member
        until(
            lambda: member.state_at > begun and member.join_state == "wait-join",
            "the rebalance waits for the paused member alone",
        )

    def end(self) -> None:
        self.paused.resume()
        until(lambda: len(describe_group(self.cluster, self.group).members) == 3, "all are members")
        self.check_all_is_read()

    def check_all_is_read(self) -> None:
        """Send a message to each partition: all messages so far are read."""
        with millstream.Producer(self.cluster) as producer:
            for partition in range(PARTITIONS):
                producer.send(self.topic, b"", partition=partition)
        number = len(self._sent) // PARTITIONS
        self._sent.update((partition, number) for partition in range(PARTITIONS))
        others = (self.paused, self.last)

        def all_is_read() -> bool:
            theirs = {(one.partition, one.offset) for one in all_events(others) if one.what == "message"}
            return self.member.seen | theirs >= self._sent

        until(all_is_read, "all is read")

    def close(self) -> None:
        self.paused.kill()
        self.last.kill()
        self.member.close()


@pytest.fixture
def rebalance(cluster: millstream.Cluster, tmp_path: Path) -> Iterator[Rebalance]:
    rebalance = Rebalance(cluster, tmp_path)
    yield rebalance
    rebalance.close()


def test_partitions_that_a_stream_gives_up_are_read(rebalance: Rebalance) -> None:
    rebalance.begin()
    rebalance.member.lose_a_call_back()
    until(lambda: not rebalance.member.stream.partitions, "the stream gives up its partitions")
    time.sleep(0.5)  # a stream that subscribes too early would do so now
    rebalance.end()


def test_a_stream_that_slept_waits_for_the_end(rebalance: Rebalance) -> None:
    rebalance.begin()
    stream = rebalance.member.stream
    rebalance.member.sleep_through_its_session()
    until(lambda: stream.patience.uncertain_since, "the stream does not know what it owns")
    time.sleep(0.5)
    assert rebalance.member.is_iterating(), "no error, although the coordinator does not answer"
    rebalance.end()
