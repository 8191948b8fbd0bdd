"""Coordination by the brokers' group protocol: each stream is a member of the group.

librdkafka implements the protocol and calls back when partitions are assigned or revoked, in the thread that fetches.
Brokers fence commits by the member's generation; a stream fences them by its owned partitions.

A stream returns messages only while its lease lasts (`proofs`). So if the coordinator does not hear from it, it stops
before the coordinator assigns its partitions to others. The coordinator also removes members that do not join a
rebalance in time, even if their requests arrive. librdkafka joins by itself, and learns of a rebalance from a
heartbeat. It gives up its partitions if no heartbeat was answered for a session, and a response may be a session old.
So it knows of a rebalance within two sessions, a lease ends within the third, and the group waits for at least three.
Only a caller that works on one message can keep librdkafka from joining. So the group waits for the longest processing
time and another session, and a stream whose caller took longer joins again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millstream.connection import failed
from millstream.consuming.clock import now
from millstream.consuming.message import Partition
from millstream.consuming.proofs import Proofs
from millstream.consuming.settings import ConnectorSettings
from millstream.consuming.stream import ATTEND_S, MessageStream
from millstream.errors import BufferFull, Failed, MillstreamError, NotOwned, Unreachable

COMMIT_TIMEOUT_S: Final = 10.0
REJOIN_S: Final = 0.05
"""Time between checks whether librdkafka has left the group."""
FENCED: Final = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._ASSIGNMENT_LOST,
)
SILENT: Final = (
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""The coordinator is unavailable, or its response to a rebalance is due first: no other comes before it."""

log = logging.getLogger("millstream.streams")


class GroupMembership:
    """One stream's membership."""

    silence = "the group's coordinator has not answered"

    def __init__(self, settings: ConnectorSettings) -> None:
        self._cooperative = settings.strategy == "cooperative-sticky"
        self._session_s = settings.session_timeout_s
        self._longest_s = settings.rebalance_timeout_s - settings.session_timeout_s
        self.proofs = Proofs(settings.session_timeout_s)
        self._midway = False  # still True after an interrupt in a call back
        self._problem: MillstreamError | None = None
        self._leaving_since: float | None = None  # when it unsubscribed in order to rejoin
        self._revoked = False  # whether librdkafka has called back since

    def begin(self, stream: MessageStream) -> None:
        def assigned(_: Any, partitions: list[TopicPartition]) -> None:
            self._assign(stream, _pairs(partitions))

        def revoked(_: Any, partitions: list[TopicPartition]) -> None:
            self._unassign(stream, partitions, commit=True)

        def lost(_: Any, partitions: list[TopicPartition]) -> None:
            self._unassign(stream, partitions, commit=False)

        stream.kafka.subscribe([stream.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def _assign(self, stream: MessageStream, partitions: list[Partition]) -> None:
        self._midway = True
        starts: dict[Partition, int] = {}
        try:
            starts = stream.start_of(partitions)
        except MillstreamError as error:
            self._problem = error  # librdkafka's callbacks swallow exceptions: the stream raises it
        if not stream.owns_any:  # perhaps as another member than before
            self.proofs.begin()
        stream.take(starts)
        wanted = [TopicPartition(*at, offset) for at, offset in starts.items()]
        if self._cooperative:
            stream.kafka.incremental_assign(wanted)
        else:
            stream.kafka.assign(wanted)
        self._midway = False

    def _unassign(self, stream: MessageStream, partitions: list[TopicPartition], *, commit: bool) -> None:
        self._midway = True
        self._give_up(stream, _pairs(partitions), commit=commit)
        if self._cooperative:
            stream.kafka.incremental_unassign(partitions)
        else:
            stream.kafka.unassign()
        self._revoked = True
        self._midway = False

    def _give_up(self, stream: MessageStream, partitions: Collection[Partition], *, commit: bool) -> None:
        stream.give_up(partitions, commit=commit)
        if not stream.owns_any:
            self.proofs.end()

    def attend(self, stream: MessageStream, elapsed_s: float) -> float:
        if self._problem is not None:
            problem, self._problem = self._problem, None
            self._rejoin(stream, commit=True)  # nobody owns the partitions until they are assigned again
            raise problem
        if self._midway:  # librdkafka and the stream may disagree about the owned partitions
            self._rejoin(stream, commit=True)
            self._midway = False
        if elapsed_s > self._longest_s and stream.owns_any:
            log.warning("%s: rejoining the group: the last message took %.0f s", stream.topic, elapsed_s)
            self._rejoin(stream, commit=True)
        if self._leaving_since is not None and not self._has_joined_anew(stream):
            return REJOIN_S
        if not stream.owns_any:
            return ATTEND_S
        at = now()
        self.proofs.ask(stream, at)
        return self.proofs.lease.until - at

    def reported(self, error: KafkaError | None, partitions: Collection[TopicPartition]) -> bool:
        return self.proofs.reported(error, partitions)

    def _rejoin(self, stream: MessageStream, *, commit: bool) -> None:
        """Leave, to join again.

        During a rebalance, librdkafka leaves only afterwards. A subscription before that cancels the leaving:
        librdkafka would keep partitions that the stream has given up, and nobody would own them.
        """
        self._give_up(stream, stream.owned, commit=commit)
        self._leaving_since, self._revoked = now(), False
        stream.kafka.unsubscribe()

    def _has_joined_anew(self, stream: MessageStream) -> bool:
        """Subscribe once librdkafka has nothing assigned any more; it calls back, unless it had nothing before."""
        assert self._leaving_since is not None
        is_late = now() - self._leaving_since > self._session_s
        if stream.kafka.assignment():
            if is_late:  # an interrupt kept it from leaving, or a rebalance takes long
                self._leaving_since = now()
                stream.kafka.unsubscribe()
            return False
        if not self._revoked and not is_late:
            return False
        self._leaving_since = None
        self.begin(stream)
        return True

    def commit(self, stream: MessageStream, positions: Mapping[Partition, int], *, wait: bool) -> None:
        self._commit(stream, positions, wait=wait)

    def _commit(self, stream: MessageStream, positions: Mapping[Partition, int], *, wait: bool) -> None:
        wanted = [TopicPartition(*at, offset) for at, offset in positions.items()]
        if not wanted:
            return
        if not wait:
            try:
                stream.kafka.commit(offsets=wanted, asynchronous=True)
            except KafkaException as error:
                raise _why(error) from None
            return
        for at in _within(lambda: stream.kafka.commit(offsets=wanted, asynchronous=False)):
            if at.error is not None:
                raise _why(KafkaException(at.error))

    def committed(self, stream: MessageStream, partitions: Collection[Partition]) -> dict[Partition, int]:
        try:
            found = stream.kafka.committed([TopicPartition(*at) for at in partitions], COMMIT_TIMEOUT_S)
        except KafkaException as error:
            raise _why(error) from None
        for at in found:
            if at.error is not None:
                raise Failed(f"the position of {at.topic}-{at.partition} cannot be read", at.error.str())
        return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def end(self, stream: MessageStream) -> None:
        """`Consumer.close` leaves the group."""


def _within(call: Any) -> list[TopicPartition]:
    """The result of a blocking call; BufferFull rather than waiting longer than COMMIT_TIMEOUT_S for a coordinator."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call() or [])
        except KafkaException as error:
            found.append(error)
        except RuntimeError:  # closed meanwhile: nothing waits for the result
            pass

    thread = threading.Thread(target=run, name="millstream-commit", daemon=True)
    thread.start()
    thread.join(COMMIT_TIMEOUT_S)
    if not found:
        raise BufferFull(f"no answer to the commit within {COMMIT_TIMEOUT_S:g} s", "it may still succeed")
    if isinstance(found[0], KafkaException):
        raise _why(found[0])
    return found[0]  # type: ignore[no-any-return]


def _why(error: KafkaException) -> MillstreamError:
    code, said = error.args[0].code(), error.args[0].str()
    if code in FENCED:
        return NotOwned("the positions were not committed: the group has rebalanced", said)
    if code in SILENT:
        return Unreachable(GroupMembership.silence, said)
    return failed(error)


def _pairs(partitions: list[TopicPartition]) -> list[Partition]:
    return [(at.topic, at.partition) for at in partitions]
