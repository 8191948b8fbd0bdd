"""A consumer in ZooKeeper: one thread carries out its rebalances, another one renews its lease.

A stream returns messages while the lease lasts. When it ends, the streams wait: the session may come back, with all
its partitions, or be over; then everything is given up without a commit, and the consumer starts again in a new
session.

A failed request may still have been carried out. The rebalance thread reports only known results to the `Rebalance`,
and retries the rest. Nothing may end this thread: the streams would wait, and nobody would learn why.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kazoo.client import KazooState

from millstream.consuming.clock import now
from millstream.consuming.lease import RENEW_EVERY, Lease
from millstream.consuming.message import Partition
from millstream.consuming.settings import ConnectorSettings
from millstream.consuming.stream import MessageStream
from millstream.consuming.zookeeper.assignment import thread_name
from millstream.consuming.zookeeper.rebalance import (
    Claim,
    Read,
    Rebalance,
    Register,
    Release,
    Start,
    Stop,
    Wait,
)
from millstream.consuming.zookeeper.registry import KazooError, Registry
from millstream.errors import Failed, MillstreamError, NotOwned

RETRY_S: Final = 0.2
"""How long to wait before claiming partitions again that another consumer has not released."""
log = logging.getLogger("millstream.zookeeper")


class ZooKeeperMembership:
    """One stream's side: a name in the registry of owners."""

    def __init__(self, consumer: Consumer, topic: str, number: int) -> None:
        self._consumer = consumer
        self.thread = thread_name(consumer.name, number)
        self.topic = topic
        self.silence = f"no ZooKeeper at {consumer.registry.hosts} has answered"

    def begin(self, stream: MessageStream) -> None:
        self._consumer.streams[self.topic, self.thread] = stream

    def attend(self, stream: MessageStream, elapsed_s: float) -> float:
        return self._consumer.lease.until - now()

    def reported(self, error: KafkaError | None, partitions: Collection[TopicPartition]) -> bool:
        return False

    def commit(self, stream: MessageStream, positions: Mapping[Partition, int], *, wait: bool) -> None:
        if now() >= self._consumer.lease.until:
            raise NotOwned("the ZooKeeper session may be over", "the positions were not committed")
        try:
            self._consumer.registry.commit(positions)
        except KazooError as error:
            raise Failed(f"ZooKeeper did not store the positions ({error!r})", retriable=True) from None

    def committed(self, stream: MessageStream, partitions: Collection[Partition]) -> dict[Partition, int]:
        found = {at: self._consumer.registry.offset(at) for at in partitions}
        return {at: offset for at, offset in found.items() if offset is not None}

    def end(self, stream: MessageStream) -> None:
        self._consumer.streams.pop((self.topic, self.thread), None)


class Consumer:
    """All streams of one connector. Connects when created: Unreachable within seconds if no ZooKeeper responds."""

    def __init__(self, group: str, settings: ConnectorSettings) -> None:
        self.name = (
            f"{group}_{socket.gethostname()}-{int(time.time() * 1000)}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        )
        self.streams: dict[tuple[str, str], MessageStream] = {}
        self.lease = Lease()
        self.registry = Registry(
            settings.zookeeper, group, settings.session_timeout_s, settings.zookeeper_config
        )
        self._subscription: dict[str, int] = {}
        self._rebalance = Rebalance(self.name)
        self._wake = threading.Event()
        self._lost = self._stopped = False
        self._renewing = threading.Event()
        self._threads = [
            threading.Thread(target=self._rebalance_loop, name="millstream-rebalance", daemon=True),
            threading.Thread(target=self._lease_loop, name="millstream-lease", daemon=True),
        ]
        self.registry.client.add_listener(self._session_changed)

    def membership(self, topic: str, number: int) -> ZooKeeperMembership:
        return ZooKeeperMembership(self, topic, number)

    def start(self, subscription: dict[str, int]) -> None:
        """Join, with this number of streams per topic."""
        self._subscription = subscription
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take and give up no more partitions; streams can still commit."""
        self._stopped = True
        self._wake.set()
        if self._threads[0].is_alive():
            self._threads[0].join()

    def close(self) -> None:
        """Leave: the owners' nodes are deleted, so others take over at once."""
        self.stop()
        self._renewing.set()
        try:
            if self.registry.client.connected:
                for at in self._rebalance.nodes:
                    self.registry.release(at)
                self.registry.unregister(self.name)
        except KazooError as error:
            log.warning("cannot delete the consumer's nodes; they stay until its session ends: %r", error)
        self.lease.end()
        self.registry.close()
        if self._threads[1].is_alive():
            self._threads[1].join()

    def _session_changed(self, state: str) -> None:
        """Called by kazoo, whose thread must not wait."""
        if state == KazooState.LOST:
            self.lease.end()
            self._lost = True
        self._wake.set()

    def _changed(self, _: Any) -> None:
        self._rebalance.changed()
        self._wake.set()

    # The lease

    def _lease_loop(self) -> None:
        while not self._renewing.wait(max(self.registry.timeout_s, 0.1) * RENEW_EVERY):
            session, sent_at = self.registry.session, now()
            if session is None:
                continue
            try:
                self.registry.touch()
            except KazooError:
                continue
            self.lease.renew(session, sent_at, self.registry.timeout_s)

    # Rebalances

    def _rebalance_loop(self) -> None:
        while not self._stopped:
            try:
                wait_s = self._step()
            except (*KazooError, MillstreamError, KafkaException) as error:
                log.warning("rebalance failed, retrying: %s", error or type(error).__name__)
                wait_s = self._again()
            except Exception:
                log.exception("rebalance failed, retrying")
                wait_s = self._again()
            if wait_s is None or wait_s > 0:
                self._wake.wait(wait_s)
                if wait_s is not None:
                    self._rebalance.changed()
            self._wake.clear()

    def _again(self) -> float:
        self._rebalance.changed()
        return RETRY_S

    def _step(self) -> float | None:
        """Carry out one action; return the seconds to wait, None: until something changes."""
        if self._lost:
            self._give_up_all()
            self._lost = (
                False  # only now, so that it is retried. Only this thread claims, so it notices each loss
            )
        action = self._rebalance.next()
        match action:
            case Register():
                session, sent_at = self.registry.session, now()
                self.registry.register(self.name, self._subscription)
                if session is not None and session == self.registry.session:
                    self.lease.begin(session)
                    self.lease.renew(session, sent_at, self.registry.timeout_s)
                    self._rebalance.registered()
            case Read():
                self._rebalance.read(*self.registry.read(self._subscription, self._changed))
            case Stop(partitions, thread):
                self._stop_messages(partitions, thread)
                self._rebalance.stopped(partitions)
            case Release(partition):
                self.registry.release(partition)
                self._rebalance.released(partition)
            case Claim(partition, thread):
                if self.registry.claim(partition, thread):
                    self._rebalance.claimed(partition)
                else:
                    self._rebalance.refused(partition)
            case Start(partitions, thread):
                self._start_messages(partitions, thread)
            case Wait():
                return RETRY_S
            case None:
                return None
        return 0

    def _start_messages(self, partitions: Collection[Partition], thread: str) -> None:
        """Start the partitions together, or else each by itself, and report each that has started.

        Temporary problems are logged, such as a partition without a leader; the stream raises any other one.
        """
        stream = self.streams.get((next(iter(partitions))[0], thread))
        if stream is None:  # it is closed
            self._rebalance.postponed(partitions)
            return
        try:
            # This may take seconds, in which other partitions' messages continue to flow.
            starts = stream.start_of(partitions)
            with stream.turns:
                _assign(stream)  # the remains of an earlier try are not a partition's start now
                stream.take(starts)
                _assign(stream)
        except KazooError:
            raise
        except Exception as error:
            with stream.turns:
                stream.give_up(partitions, commit=False)
            if len(partitions) > 1:
                for at in partitions:
                    self._start_messages([at], thread)
                return
            (at,) = partitions
            self._rebalance.postponed(partitions)
            log.warning("cannot start %s-%d, retrying: %s", *at, error or type(error).__name__)
            if not getattr(error, "retriable", isinstance(error, KafkaException)):
                stream.report(error)
        else:
            self._rebalance.started(partitions)

    def _stop_messages(self, partitions: Collection[Partition], thread: str) -> None:
        stream = self.streams.get((next(iter(partitions))[0], thread))
        if stream is not None:
            with stream.turns:
                stream.give_up(partitions, commit=True)
                _assign(stream)

    def _give_up_all(self) -> None:
        self.registry.forget()
        for stream in list(self.streams.values()):
            with stream.turns:
                stream.give_up(stream.owned, commit=False)
                _assign(stream)
        self._rebalance.lost()


def _assign(stream: MessageStream) -> None:
    """Make librdkafka fetch the stream's partitions, at their positions; the stream's lock is held."""
    there = {(at.topic, at.partition) for at in stream.kafka.assignment()}
    gone = [TopicPartition(*at) for at in there - stream.owned]
    new = [TopicPartition(*at, stream.base(at)) for at in stream.owned - there]
    if gone:
        stream.kafka.incremental_unassign(gone)
    if new:
        stream.kafka.incremental_assign(new)
