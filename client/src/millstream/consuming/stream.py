"""A message stream: an iterator over the messages of the partitions that it currently owns.

Each stream has its own librdkafka consumer, so nothing passes between threads, and the only buffers are
librdkafka's and one batch. The batch is a list that the iterating thread walks; a thread that takes partitions away
overwrites their messages in it, so that they are not returned any more. The stream reads the clock between runs of
messages, which take about a millisecond. When it is time, `_attend` lets the
stream's membership work (serve rebalances, check the session, commit). Within a run no Python code of ours is involved,
which is fast, and keeps interrupts away: a message that has left the batch has reached the caller.

A message counts as processed when the next one is taken, or when the caller commits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import chain, islice
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millstream.connection import Cluster, failed
from millstream.consuming.batches import Batches, check_maximum
from millstream.consuming.clock import CLOCK, now
from millstream.consuming.commits import Commits
from millstream.consuming.membership import Membership
from millstream.consuming.message import Decoders, Message, Partition, Position, messages
from millstream.consuming.offsets import starting_offsets, within_logs
from millstream.consuming.patience import Patience
from millstream.consuming.presence import Presence
from millstream.consuming.settings import ConnectorSettings, Target, check_target
from millstream.consuming.turns import Turns
from millstream.errors import BadInput, Closed, Failed, NotOwned, UnknownTopic

BATCH: Final = 256
"""Most messages of a batch, unless the caller takes larger ones.

They fit into the processor's cache, and are too few to start a garbage collection.
"""
POLL_S: Final = 0.1
"""Longest time that a fetch holds the stream's lock."""
CLOSE_TIMEOUT_S: Final = 10.0
ANSWER_S: Final = 0.002
"""In which the coordinator mostly answers."""
UNCERTAIN_S: Final = 0.02
ATTEND_S: Final = 0.5
"""Longest time between two checks of a stream's membership, while messages are taken."""
RUN_S: Final = 0.001
MAX_RUN: Final = 64
NOT_YET: Final = (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)
"""Errors of a seek in a partition that librdkafka is just starting or stopping to fetch."""

log = logging.getLogger("millstream.streams")


def _next_run(some: int, took_s: float) -> int:
    """Number of messages to return before the next read of the clock: about a millisecond's worth."""
    return min(some * 2, MAX_RUN) if took_s < RUN_S / 2 else max(some // 4, 1)


class MessageStream:
    """Messages of one topic for one thread or task: iterate with ``for`` or ``async for``. Created by a Connector.

    Iteration waits for messages and ends when the connector is closed. It raises UnknownTopic if the topic is deleted,
    and Unreachable if no broker has responded for ``unreachable_timeout_s``; iterating again continues after the last
    message. Only one thread or task may iterate; any thread may call every other method.
    """

    def __init__(
        self, cluster: Cluster, topic: str, config: dict[str, Any], decoders: Decoders,
        settings: ConnectorSettings, membership: Membership[MessageStream],
    ) -> None:  # fmt: skip
        self.topic = topic
        self.settings = settings
        self._cluster, self._decoders, self._membership = cluster, decoders, membership
        self.turns = Turns()
        self._owned: set[Partition] = set()
        self._batch: list[Message | None] = []
        self._left: Any = iter(self._batch)
        self._most = BATCH
        self._in_hand = 1  # how many of those handed out last the caller may still be working on
        self._commits = Commits(
            topic, lambda positions, wait: self._membership.commit(self, positions, wait=wait)
        )
        self._has_unknown_outcome = False
        self.has_transactions = False
        """Whether a producer commits its positions."""
        self.losses = 0
        """How often partitions were taken away from the stream."""
        self._next: dict[Partition, int] = {}  # each partition's position after the batch
        self._astray: set[Partition] = set()  # librdkafka has yet to move: its messages are dropped
        self._heard: set[Partition] = set()  # with messages since they were taken or moved
        self._due = self._next_commit = 0.0
        self.patience = Patience(topic, cluster, settings.unreachable_timeout_s)
        self._presence = Presence(topic, cluster)
        self._closed = False
        self._consuming = False  # still True after an interrupt between librdkafka's queue and the batch
        self._serving = False  # whether this is one of librdkafka's calls back
        self._gaps = False  # whether the batch has lost messages, so that its runs say nothing about time
        self._problem: Exception | None = None
        self._thread: ThreadPoolExecutor | None = None
        try:
            self.kafka: Any = confluent_kafka.Consumer(
                config | {"on_commit": self._commit_reported, "error_cb": self.patience.failed}
            )
        except KafkaException as error:
            raise BadInput(f"config: {error.args[0].str()}", "see librdkafka's CONFIGURATION.md") from None
        self._seen = now()
        with self.turns:
            membership.begin(self)

    # Iteration

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._runs())

    def _runs(self) -> Iterator[Iterator[Message]]:
        clock, which, some = time.clock_gettime, CLOCK, 1
        while True:
            while (begun := clock(which)) >= self._due and self._attend():
                pass  # it may have taken long, or the process was paused in it
            self._most, self._in_hand = BATCH, 1
            yield filter(None, islice(self._left, some))
            some = 1 if self._gaps else _next_run(some, clock(which) - begun)
            if not self._left.__length_hint__() and not self._fetch():
                return

    async def __aiter__(self) -> AsyncIterator[Message]:
        clock, which, some = time.clock_gettime, CLOCK, 1
        while True:
            while (begun := clock(which)) >= self._due and await self._aside(self._attend):
                pass  # it may have taken long, or the process was paused in it
            self._most, self._in_hand = BATCH, 1
            for message in filter(None, islice(self._left, some)):
                yield message
            some = 1 if self._gaps else _next_run(some, clock(which) - begun)
            if not self._left.__length_hint__() and not await self._aside(self._fetch):
                return

    def batches(self, maximum: int = BATCH) -> Batches:
        """The messages in lists of at most ``maximum``, for ``for`` or ``async for`` instead of the stream itself.

        The messages of a list count as processed when the next list is taken, and `commit` commits the whole list.
        """
        check_maximum(maximum)
        return Batches(self._prepare, lambda: self._hand_out(maximum), self._fetch, self._aside)

    def _prepare(self) -> bool:
        """The caller wants the next list: let the membership work if that is due; False if the stream is closed."""
        self._in_hand = 0
        while now() >= self._due:
            if not self._attend():
                return False
        return True

    def _hand_out(self, maximum: int) -> list[Message]:
        with self.turns:
            self._most = maximum
            self._in_hand = min(maximum, self._left.__length_hint__())
            return [*filter(None, islice(self._left, maximum))]

    async def _aside(self, look: Callable[[], bool]) -> bool:
        """Call it in a thread; False if the stream is closed."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, f"millstream-{self.topic}")
        try:
            looking = asyncio.get_running_loop().run_in_executor(self._thread, look)
        except RuntimeError:  # shut down, by a close in another task or thread
            if self._closed:
                return False
            raise
        return await looking

    def _fetch(self) -> bool:
        """Replace the batch, which is fully processed, by the next one; False if the stream is closed."""
        while True:
            with self.turns:
                if self._closed:
                    return False
                if self._left.__length_hint__():  # a fetch with a cancelled caller has brought it
                    return True
                self._set_batch([])
                if self._problem is not None:
                    problem, self._problem = self._problem, None
                    raise problem
                certain = self._membership_turn()
                if not certain:
                    self._serve()
                elif self._consume():
                    return True
            if certain:
                self.patience.check_brokers()
                self._presence.check()
            else:
                self._wait()

    def _consume(self) -> bool:
        """Get a batch; returns whether there is one. The lock is held."""
        self._settle()
        self._consuming = True
        found = self._poll(self._most, 0)
        if not found and (
            found := self._poll(1, POLL_S)
        ):  # a call that waits would wait for everything that it may return
            found += self._poll(self._most - 1, 0) if self._most > 1 else []
        kept = bool(found) and self._keep(found)
        self._consuming = False
        if not found:
            self._pass_markers()
        return kept

    def _pass_markers(self) -> None:
        """Move behind what ends a log and is no message: markers of transactions, and aborted records.

        The lock is held. Only the next message tells that librdkafka has moved, so before it its position may be the
        one before a seek.
        """
        known = [TopicPartition(*at) for at in self._heard & self._owned - self._astray]
        for at in self.kafka.position(known) if known else ():
            if at.offset > self._next[at.topic, at.partition]:
                self._next[at.topic, at.partition] = at.offset

    def _poll(self, most: int, timeout_s: float) -> list[Any]:
        """Messages from librdkafka, which serves rebalances meanwhile."""
        self._serving = True
        try:
            return self.kafka.consume(most, timeout_s)  # type: ignore[no-any-return]
        except KafkaException as error:
            raise failed(error) from None
        finally:
            self._serving = False

    def _settle(self, *, seek: bool = True) -> None:
        """Move librdkafka to the partitions' positions, after a seek or an interrupt that may have lost messages."""
        if self._consuming:
            self._astray |= self._owned
            self._consuming = False
        for at in list(self._astray) if seek else ():
            try:
                self.kafka.seek(TopicPartition(*at, self._next[at]))
            except KafkaException as error:
                if error.args[0].code() in NOT_YET:
                    continue  # just assigned, or moving now: the next try follows soon
                raise failed(error) from None
            self._astray.discard(at)
            self._heard.discard(at)

    def _keep(self, found: list[Any]) -> bool:
        """Make our messages the batch; returns whether there are any. The lock is held."""
        if any(map(confluent_kafka.Message.error, found)):
            found = [kafka for kafka in found if self._is_message(kafka)]
        if not found:
            return False
        topic, ours = self.topic, self._owned - self._astray
        numbers = list(map(confluent_kafka.Message.partition, found))
        if numbers.count(numbers[0]) == len(
            numbers
        ):  # usually: librdkafka returns one partition after the other
            last: dict[Any, Any] = {numbers[0]: found[-1]}
        else:
            last = dict(zip(numbers, found, strict=True))
        if any((topic, partition) not in ours for partition in last):
            found = [kafka for kafka in found if (topic, kafka.partition()) in ours]
        if not found:
            return False
        self.patience.heard()
        self._presence.heard()
        self._set_batch(messages(found, self._decoders))
        # Last, because an interrupt before this repeats messages and loses none.
        for partition, kafka in last.items():
            if (topic, partition) in ours:
                self._next[topic, partition] = kafka.offset() + 1
                self._heard.add((topic, partition))
        return True

    def _attend(self) -> bool:
        """Let the membership work between two messages; messages of lost partitions leave the batch.

        False if the stream is closed.
        """
        while True:
            with self.turns:
                if self._closed:
                    return False
                self._serve()
                if self._membership_turn():
                    return True
            self._wait()

    def _serve(self) -> None:
        """Let librdkafka call back. The lock is held."""
        left = self._left.__length_hint__()
        has_room = left <= self._most  # without room only while it waits
        self._settle(seek=has_room)
        self._consuming = True
        while extra := self._poll(1, 0):  # a message joins the end of the batch
            at = (self.topic, extra[0].partition())
            if at in self._astray:
                break
            if self._is_message(extra[0]) and at in self._owned:
                if not has_room:
                    self._astray.add(at)  # librdkafka returns to this message later
                    break
                if left:
                    self._batch += messages(extra, self._decoders)
                else:
                    self._set_batch(messages(extra, self._decoders))
                self._next[at] = extra[0].offset() + 1
                self._heard.add(at)
                break
        self._consuming = False

    def _membership_turn(self) -> bool:
        """Let the membership check, and commit what is due; False while ownership is uncertain. The lock is held."""
        at = now()
        elapsed, self._seen = at - self._seen, at
        wait = self._membership.attend(self, elapsed)
        if wait <= 0:
            return False
        if self.settings.commit == "processed" and at >= self._next_commit:
            self._next_commit = at + self.settings.commit_interval_s
            self._commit_processed(wait=False)
        self.patience.certain(self._named)
        self._due = at + min(wait, ATTEND_S)
        return True

    def _is_message(self, kafka: Any) -> bool:
        """False for an error, which librdkafka reports among messages; a lasting one is raised after them."""
        error = kafka.error()
        if error is None:
            return True
        code = error.code()
        if code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ):
            self._problem = UnknownTopic(
                f'there is no topic "{self.topic}" any more', "create it, then iterate again"
            )
        elif code not in (KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED) and not error.retriable():
            log.warning("%s: %s", self.topic, error.str())
            if error.fatal() or code in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.GROUP_AUTHORIZATION_FAILED,
            ):
                self._problem = Failed(error.str())
        return False

    def _wait(self) -> None:
        """It is uncertain what the stream owns; a coordinator does not vouch for members of a deleted topic."""
        self._presence.check()
        time.sleep(UNCERTAIN_S if self.patience.uncertain_since else ANSWER_S)
        self.patience.uncertain(self._membership.silence, self._named)

    # Positions

    def _handed_out(self) -> int:
        return len(self._batch) - int(self._left.__length_hint__())

    def _positions(self, done: int) -> dict[Partition, int]:
        """The position in each owned partition once the first ``done`` messages of the batch are processed."""
        found = {at: self._next[at] for at in self._owned}
        for message in filter(None, reversed(self._batch[done:])):
            found[self.topic, message.partition] = message.offset
        return found

    def _commit_processed(self, *, wait: bool, only: Collection[Partition] | None = None) -> None:
        positions = self._positions(max(self._handed_out() - self._in_hand, 0))
        wanted = {at: offset for at, offset in positions.items() if only is None or at in only}
        self._commits.processed(wanted, wait=wait)

    def _commit_reported(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """librdkafka reports a commit, of ours or of the membership."""
        if not self._membership.reported(error, partitions or ()):
            self._commits.reported(error, partitions or ())

    def commit(self, position: Position | Message | None = None) -> None:
        """Commit the position after the last message taken, in each partition; or the one given, or after a message.

        It waits for the commit. NotOwned if another consumer may own the partition now; then nothing is committed.
        """
        with self.turns:
            self._check_open()
            if position is None:
                positions = self._positions(self._handed_out())
            else:
                position = position.position if isinstance(position, Message) else position
                self._check_owned((position.topic, position.partition))
                positions = {(position.topic, position.partition): position.offset}
            self._commits.by_caller(positions)

    def seek(self, target: Target, partition: int | None = None) -> None:
        """Continue elsewhere, in one partition or in each owned one.

        At an offset, "earliest", "latest", or the first message at or after a time (a datetime with a zone). An offset
        outside the log becomes its start or end. NotOwned if the stream does not own the partition.
        """
        check_target("seek", target)
        with self.turns:
            self._check_open()
            if partition is not None:
                self._check_owned((self.topic, partition))
            wanted = list(self._owned) if partition is None else [(self.topic, partition)]
            for at, offset in starting_offsets(self._cluster, wanted, target).items():
                self._seek(at, offset)

    def _seek(self, at: Partition, offset: int) -> None:
        self._forget(at)
        self._next[at] = self._commits.safe[at] = offset
        self._astray.add(at)

    # For transactions of producers

    def check_transactional(self) -> None:
        """BadInput if a producer cannot commit the stream's positions."""
        settings = self.settings
        if settings.commit != "manual" or settings.coordination != "group":
            raise BadInput(
                f"stream: commit={settings.commit!r} with coordination={settings.coordination!r} is not allowed",
                'connect with commit="manual" and coordination="group"',
            )
        if self._has_unknown_outcome:
            raise Failed(
                "it is not known whether this stream's last transaction was committed",
                "close its connector and connect again, after a producer has begun with the same transactional_id",
            )

    def to_commit(self) -> tuple[list[TopicPartition], Any]:
        """The positions after the messages taken, where they are new, and this member of the group."""
        self._check_open()
        found = self._positions(self._handed_out())
        new = [TopicPartition(*at, found[at]) for at in self._commits.unsafe(found)]
        return new, self.kafka.consumer_group_metadata()

    def committed_by_producer(self, positions: Collection[TopicPartition]) -> None:
        self._commits.by_producer({(at.topic, at.partition): at.offset for at in positions})

    def end_transactions(self) -> None:
        """Nobody knows whether its last transaction was committed, and so where it should go on."""
        self._has_unknown_outcome = True

    def rewind(self) -> None:
        """Return to the messages since the last commit by a producer, the start or a seek."""
        with self.turns:
            for at in self._commits.unsafe(self._positions(self._handed_out())):
                self._seek(at, self._commits.safe[at])

    @property
    def partitions(self) -> tuple[int, ...]:
        """Numbers of the topic's partitions that the stream owns now, in ascending order."""
        return tuple(sorted(partition for _, partition in self._owned))

    # For memberships: partitions are taken and given up. The lock is held.

    def take(self, partitions: Mapping[Partition, int]) -> None:
        """Take these partitions, at these offsets."""
        self._heard.difference_update(partitions)
        self._next.update(partitions)
        self._commits.begin(partitions)
        self._owned.update(partitions)
        self._due = 0.0

    def start_of(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Start offsets of new partitions: the caller's, else the commit, else ``start``. Needs no lock.

        An offset outside the log counts as none.
        """
        found: dict[Partition, int] = {}
        if self.settings.positions is not None:
            given = self.settings.positions(sorted(partitions))
            found = {at: given[at] for at in partitions if at in given}
            for at, offset in found.items():
                check_target(f"positions: {at[0]}-{at[1]}", offset)
        without = [at for at in partitions if at not in found]
        committed = self._membership.committed(self, without) if without else {}
        found |= committed
        if isinstance(self.settings.start, datetime):  # librdkafka itself resets to either end
            found = within_logs(self._cluster, found)
        without = [at for at in partitions if at not in found]
        return found | starting_offsets(self._cluster, without, self.settings.start)

    def give_up(self, partitions: Collection[Partition], *, commit: bool) -> None:
        """Give up these partitions: return no more of their messages. ``commit``: first commit the processed ones."""
        mine = self._owned.intersection(partitions)
        if commit and mine and self.settings.commit == "processed":
            # In librdkafka's own call another thread could not commit, so there is no bounded wait; its requests
            # reach the coordinator before the member joins again.
            self._commit_processed(wait=not self._serving, only=mine)
        for at in mine:
            self._forget(at)
        self._owned -= mine
        self.losses += bool(mine)

    def report(self, problem: Exception) -> None:
        """Iteration raises this after all messages of the batch."""
        self._problem = problem

    def base(self, at: Partition) -> int:
        """The start offset of a partition that was just taken."""
        return self._next[at]

    def standing(self) -> Position:
        """The committed or first position in one of its partitions: committing it skips nothing."""
        return self._commits.standing(min(self._owned))

    @property
    def owns_any(self) -> bool:
        return bool(self._owned)

    @property
    def owned(self) -> frozenset[Partition]:
        """The partitions that the stream owns now, as pairs of topic and number. Raises nothing."""
        return frozenset(self._owned)

    def _forget(self, at: Partition) -> None:
        """Drop a partition's messages from the batch. The iterating thread may walk the batch meanwhile."""
        self._gaps = True
        batch = self._batch
        for index, message in enumerate(batch):
            if message is not None and message.partition == at[1]:
                batch[index] = None
        self._astray.discard(at)
        self._commits.forget(at)

    def _drop_batch(self) -> None:
        self._batch[:] = [None] * len(self._batch)  # the iterating thread may be walking it
        self._set_batch([])

    def _set_batch(self, batch: list[Message | None]) -> None:
        self._batch = batch
        self._left = iter(batch)
        self._gaps = False

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the connector is closed", "connect again")

    def _check_owned(self, at: Partition) -> None:
        if at not in self._owned:
            raise NotOwned(
                f"this stream does not own {at[0]}-{at[1]}", f"it owns {self._named()} of {self.topic} now"
            )

    def _named(self) -> str:
        return ", ".join(map(str, self.partitions)) or "none"

    def close(self) -> None:
        """Commit processed messages, leave, and end the iteration. The connector calls it."""
        with self.turns:
            if self._closed:
                return
            self._closed = True
            self._due = 0.0
            try:
                if self.settings.commit == "processed" and not self.patience.is_down():
                    self._commit_processed(wait=True)
            finally:
                self._membership.end(self)
                self._owned.clear()
                self._drop_batch()
                # librdkafka waits for a coordinator that may be gone; the wait must end.
                closing = threading.Thread(target=self.kafka.close, name="millstream-close", daemon=True)
                closing.start()
                closing.join(CLOSE_TIMEOUT_S)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
