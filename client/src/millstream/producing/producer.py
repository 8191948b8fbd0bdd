"""The producer: records into topics, within bounds of memory and time, and every failure is reported.

librdkafka batches, compresses, retries and partitions. This module adds what Python users otherwise write themselves:
serializers, partitioners with a checked result, waiting for room instead of BufferError, delivery reports without
polling, and an error for undelivered records.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import confluent_kafka

from millstream.client_config import DEFAULT_BOOTSTRAP
from millstream.connection import Cluster, cluster_of, failed, unexpected
from millstream.errors import (
    BadInput,
    BufferFull,
    Closed,
    MillstreamError,
    NotSerializable,
    RecordTooLarge,
    UnknownTopic,
)
from millstream.producing.deliveries import Deliveries, Delivery, OnDelivery
from millstream.producing.partition_counts import PartitionCounts
from millstream.producing.settings import ProducerSettings
from millstream.producing.stamps import Stamps
from millstream.producing.transaction import Transaction, Transactions
from millstream.serdes import Serializer, serializer

if TYPE_CHECKING:
    from millstream.consuming.stream import MessageStream

log = logging.getLogger("millstream.producer")
Headers: TypeAlias = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
POLL_S: Final = 0.05
SERVE_EVERY: Final = 256
"""A sending thread serves reports after so many records: two threads would wait for each other for each report."""
ASIDE_S: Final = 0.01
"""Time for which the producer's own thread leaves reports to a sending thread before it looks again."""
ROOM_S: Final = 0.001
"""Time between two tries to find room, while the producer's own thread serves reports."""
REPORT_S: Final = 1.0
"""How often an idle producer checks for windows of its audit that have ended."""


Prepared: TypeAlias = tuple[str, Any, Any, dict[str, Any]]
"""A record for librdkafka: topic, value, key, and the other arguments of its ``produce``."""


class Producer:
    """Sends records to a cluster; for any number of threads. Close it, or use it as a context manager.

        with Producer("localhost:9092", value_serializer=Json()) as producer:
            producer.send("flights", {"flight": "UA1545"}, key=b"EWR")

    ``bootstrap``: "HOST:PORT", several separated by commas, or a Cluster. Serializers: a Serde or a callable to bytes;
    without one, keys and values are bytes, text or None. ``options``: the fields of `ProducerSettings`. The producer
    connects in the background; raises Unreachable within seconds if no broker responds, UnknownTopic if the topic of
    the audit does not exist, BadInput for options.
    """

    def __init__(
        self,
        bootstrap: str | Cluster = DEFAULT_BOOTSTRAP,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        **options: Any,
    ) -> None:
        try:
            self.settings = ProducerSettings(**options)
        except TypeError as error:
            raise unexpected("producer", error, ProducerSettings) from None
        self.cluster = cluster_of(bootstrap, self.settings.config)
        self._key, self._value = serializer(key_serializer), serializer(value_serializer)
        partitioner = self.settings.partitioner
        self._choose = None if hasattr(partitioner, "librdkafka") else partitioner
        self._counts = PartitionCounts(self.cluster)
        self._closed = False
        audit = self.settings.audit
        self._stamps = None if audit is None else Stamps(audit, self._send_report)
        self._deliveries = Deliveries(None if self._stamps is None else self._stamps.delivered)
        config = self.settings.client_config(self.cluster)
        self._calls_back = "logger" in config or any(map(callable, config.values()))
        """Whether reports call the user's code, so that only the producer's own thread may serve them in `send`."""
        self._unserved = self._served = 0
        self._serving: set[int] = set()
        """The sending threads that serve reports at this moment."""
        self._closes_next = False
        """A signal's handler wants to close the producer while the interrupted thread serves reports."""
        if self.settings.transactional_id is not None:  # otherwise polls raise that it was fenced
            config = {"error_cb": _known_by_then} | config
        self._kafka = _client(config | {"on_delivery": self._deliveries.reported})
        _ = self.cluster.admin  # Unreachable, rather than a buffer that fills
        if audit is not None:
            _check_audit(self.cluster, audit.topic)
        self._transactions = self._started()
        self._produce = self._kafka.produce
        self._stopped = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="millstream-producer", daemon=True)
        self._poller.start()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Pass a record on for delivery; wait if the buffer is full.

        ``partition`` overrides the partitioner. ``timestamp`` is in milliseconds since 1970 (default: now).
        ``on_delivery`` should be quick: it is called from the producer's own thread, or from one that waits in `flush`
        or `close`. Without it, `flush` and `close` report a failure. Raises UnknownTopic, BufferFull
        after ``buffer_timeout_s``, NotSerializable, BadPartition, RecordTooLarge, Closed; then the record was not sent.
        """
        self.hand_over(self.prepare(topic, value, key, headers, partition, timestamp, on_delivery))

    def prepare(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: OnDelivery | None,
    ) -> Prepared:
        """The first half of `send`: serialize, stamp and partition a record, once for any number of `hand_over`."""
        if topic not in self._counts.known:
            self.learn(topic)
        if self._key is not None and key is not None:
            key = _serialized(self._key, "key", topic, key)
        if self._value is not None and value is not None:
            value = _serialized(self._value, "value", topic, value)
        if self._stamps is not None:
            headers, timestamp = self._stamps.stamped(topic, headers, timestamp)
        more: dict[str, Any] = {}
        if partition is not None:
            self._counts.check(topic, partition)
        elif self._choose is not None:
            partition = self._counts.choose(self._choose, topic, _bytes(key), _bytes(value))
        if partition is not None:
            more["partition"] = partition
        if headers is not None:
            more["headers"] = headers
        if timestamp is not None:
            more["timestamp"] = timestamp
        if on_delivery is not None:
            self._calls_back = True
            more["on_delivery"] = self._deliveries.callback(on_delivery)
        return topic, value, key, more

    def hand_over(self, record: Prepared) -> None:
        """The second half: after BufferFull, the same record can be passed on again."""
        topic, value, key, more = record
        try:
            self._produce(topic, value, key, **more)
        except BufferError:
            self._wait_for_room(topic, value, key, more)
        except Exception as error:
            raise self._refused(error, topic, key, value) from None
        self._unserved += 1
        if self._unserved >= SERVE_EVERY and not self._calls_back:
            self._serve(0)

    def submit(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[Delivery]:
        """The same with a future: a `Delivery`, or the exception that explains the failure.

        `flush` and `close` do not report a failure in the future again.
        """
        future: Future[Delivery] = Future()
        future.set_running_or_notify_cancel()  # a record that was passed on cannot be taken back

        def settle(delivery: Delivery | None, error: MillstreamError | None) -> None:
            if error is not None:
                future.set_exception(error)
            elif delivery is not None:
                future.set_result(delivery)

        self.send(
            topic, value, key, headers=headers, partition=partition, timestamp=timestamp, on_delivery=settle
        )
        return future

    def transaction(self, stream: MessageStream | None = None) -> Transaction:
        """A block whose records become visible together, at its end, or not at all, if it fails.

            with producer.transaction(stream):
                for message in batch:
                    producer.send("counts", count(message.value))

        With ``stream``, from which the block's messages come, its group's positions are committed with the records; if
        the block fails, the stream returns to the messages before it. The stream needs ``commit="manual"``. Consumers
        that read committed records only, as librdkafka's do by default, see none of an aborted block.

        Raises NotDelivered; ProducerFenced: close this producer; NotOwned: the group has rebalanced; Unreachable: the
        outcome may be unknown, until a producer begins with the same id. BadInput without a transactional id; Failed
        for a stream whose last outcome is unknown.
        """
        self._check_open()
        if self._transactions is None:
            raise BadInput(
                "transaction: this producer has no transactional id",
                "create it with the option transactional_id",
            )
        if stream is not None:
            stream.check_transactional()
        return Transaction(self, self._transactions, stream)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until each record sent so far is acknowledged or has failed.

        NotDelivered names the records that failed since the last `flush`. BufferFull if records are still in flight
        after ``timeout_s`` (default: until each has its delivery timeout); they stay in flight.
        """
        self._check_open()
        self._flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver sent records, or raise NotDelivered; then the producer is closed. A second call does nothing.

        Records that are still in flight after ``timeout_s`` are abandoned, and named, too.
        """
        if self._closed:
            return
        if threading.get_ident() in self._serving:  # in librdkafka's call back, closing would wait for itself
            self._closes_next = True
            return
        self._closed = True
        self._produce = _closed
        if self._transactions is not None and self._transactions.is_open:
            with contextlib.suppress(MillstreamError):  # then the brokers abort it, after its timeout
                self._transactions.abort()
        is_over = self._transactions is not None and self._transactions.is_over
        try:
            if self._stamps is not None:
                with contextlib.suppress(BufferFull):
                    self._await_answers(timeout_s)
                self._stamps.counts.close()
            if not is_over:  # its last transaction has reported why
                self._flush(timeout_s)
        except (BufferFull, BufferError):  # BufferError for a report
            self._kafka.purge()
            self._kafka.flush(POLL_S)
            self._deliveries.failures.raise_any()
        finally:
            self._stopped.set()
            if threading.current_thread() is not self._poller:
                self._poller.join()
            if is_over:
                _close(self._kafka)
            else:
                self._kafka.close()

    def __len__(self) -> int:
        """Number of records without an acknowledgement so far."""
        return len(self._kafka)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. An error of the body is not hidden by an error of the close, which becomes its note."""
        try:
            self.close()
        except MillstreamError as undelivered:
            if error is None:
                raise
            error.add_note(str(undelivered))

    def learn(self, topic: str) -> None:
        """Find out whether the topic exists, with one request; `send` does it for its first record. UnknownTopic."""
        self._check_open()
        self._counts.of(topic)

    def must_learn(self, topic: str) -> bool:
        """Whether the next record of the topic costs a request first."""
        return topic not in self._counts.known or (self._choose is not None and self._counts.is_old(topic))

    # Delivery

    def _send_report(self, report: bytes) -> None:
        """Send the audit's counts of a window; an undelivered report is named like a record."""
        assert self.settings.audit is not None
        topic = self.settings.audit.topic
        try:
            self._kafka.produce(topic, report)
        except confluent_kafka.KafkaException as error:  # at once, for example for a deleted topic
            self._deliveries.failures.add(topic, -1, None, error.args[0])

    def _poll(self) -> None:
        checked, served = time.monotonic(), 0
        while not self._stopped.is_set():
            by_senders, served = self._served - served, self._served
            try:
                if by_senders > 0:
                    self._stopped.wait(ASIDE_S)
                else:
                    self._kafka.poll(POLL_S)
            except Exception as error:  # from a callback in ``config``: later records must get their reports
                if self._transactions is not None and isinstance(error, confluent_kafka.KafkaException):
                    self._stopped.wait(POLL_S)  # it was fenced: the next call of its transaction says so
                else:
                    log.exception("a callback failed")
            if self._stamps is not None and time.monotonic() - checked > REPORT_S:
                checked = time.monotonic()
                with contextlib.suppress(BufferError):
                    self._stamps.counts.report()

    def _flush(self, timeout_s: float | None) -> None:
        self._await_answers(timeout_s)
        self._deliveries.failures.raise_any()

    def _await_answers(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while left := self._left():
            if deadline is not None and time.monotonic() >= deadline:
                raise BufferFull(
                    f"{left:,} records are in flight after {timeout_s:g} s",
                    "wait longer, or close the producer",
                )

    def _left(self) -> int:
        """Serve reports for a moment; returns the number of records in flight."""
        try:
            return int(self._kafka.flush(POLL_S))
        except confluent_kafka.KafkaException as error:  # a fatal one
            if self._transactions is None:
                raise failed(error) from None
            raise self._transactions.explained("records were not delivered", error) from None

    def _wait_for_room(self, topic: str, value: Any, key: Any, more: dict[str, Any]) -> None:
        deadline = time.monotonic() + self.settings.buffer_timeout_s
        while True:
            self._check_open()
            if time.monotonic() >= deadline:
                raise BufferFull(
                    f"no room for a record of {topic} within {self.settings.buffer_timeout_s:g} s: "
                    f"{len(self):,} records wait for brokers",
                    "send more slowly, or raise max_buffered_bytes and max_buffered_messages",
                )
            if self._calls_back:
                time.sleep(ROOM_S)
            else:
                self._serve(ASIDE_S)
            try:
                self._produce(topic, value, key, **more)
            except BufferError:
                continue
            except Exception as error:
                raise self._refused(error, topic, key, value) from None
            return

    def _serve(self, timeout_s: float) -> None:
        """Serve reports in a sending thread, while the producer's own one stands aside. They call no user's code."""
        self._unserved = 0
        self._served += 1
        self._serving.add(thread := threading.get_ident())
        try:
            self._kafka.poll(timeout_s)
        except RuntimeError:
            if not self._closed:  # by another thread
                raise
        finally:
            self._serving.discard(thread)
            if self._closes_next:
                self._closes_next = False
                self.close()

    def _started(self) -> Transactions | None:
        settings = self.settings
        if settings.transactional_id is None:
            return None
        found = Transactions(self._kafka, settings.transactional_id, settings.transaction_timeout_s)
        try:
            found.start()
        except BaseException:
            _close(self._kafka)
            raise
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the producer is closed", "create another one")

    def _refused(self, error: Exception, topic: str, key: Any, value: Any) -> Exception:
        """Our error for librdkafka's refusal of a record."""
        if isinstance(error, confluent_kafka.KafkaException):
            if self._transactions is not None and not self._transactions.is_open:
                return BadInput("send: no transaction is open", "send within `with producer.transaction():`")
            if error.args[0].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                size = len(key or b"") + len(value or b"")
                return RecordTooLarge(
                    f"a record of {size:,} bytes for {topic} is too large: at most "
                    f"{self.settings.max_record_bytes:,} with its overhead",
                    "raise max_record_bytes here and max.message.bytes of the topic",
                )
            if self._transactions is not None:
                return self._transactions.explained(f"a record for {topic} was not sent", error)
            return failed(error)
        if isinstance(error, TypeError | ValueError | OverflowError):
            return NotSerializable(
                f"a record for {topic} cannot be sent ({error})",
                "give keys, values and headers as bytes, text or None, timestamps as milliseconds (int), "
                "or give the producer a serializer",
            )
        return error


def _closed(*_: Any, **__: Any) -> None:
    """Replaces librdkafka's produce, so that checking each record costs nothing."""
    raise Closed("the producer is closed", "create another one")


def _known_by_then(_: Any) -> None:
    """librdkafka reports an error aside: the transaction's own calls raise it."""


def _client(config: dict[str, Any]) -> Any:
    try:
        return confluent_kafka.Producer(config)
    except confluent_kafka.KafkaException as error:
        raise BadInput(f"config: {error.args[0].str()}", "see librdkafka's CONFIGURATION.md") from None


def _close(kafka: Any) -> None:
    """End librdkafka's client, which aborts an open transaction; after a fatal error it can only say so again."""
    with warnings.catch_warnings(), contextlib.suppress(confluent_kafka.KafkaException):
        warnings.simplefilter("ignore", RuntimeWarning)
        kafka.close()


def _check_audit(cluster: Cluster, topic: str) -> None:
    try:
        cluster.partitions(topic)
    except UnknownTopic as error:
        raise UnknownTopic(f"audit: {error.problem}", "create it, or name another") from None


def _serialized(serialize: Callable[[Any], bytes], field: str, topic: str, value: Any) -> bytes:
    try:
        return serialize(value)
    except Exception as error:
        raise NotSerializable(
            f"the {field} of a record for {topic} cannot be serialized: {type(error).__name__}: {error}",
            f"{type(value).__name__} has the wrong type or content for this serializer",
        ) from error


def _bytes(content: Any) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
