"""Transactions of a cluster, for administrators: which there are, and which hang in a log.

A transaction *hangs* if it is open in a partition's log, while the coordinator of transactions knows of no transaction
of its producer in this partition: nobody will end it, and readers of committed records get nothing beyond its start.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import KafkaError

from millstream import raw, sasl_login
from millstream import transaction_requests as requests
from millstream.addresses import host_port
from millstream.connection import REQUEST_TIMEOUT_S, Cluster
from millstream.errors import BadInput, Failed
from millstream.transaction_requests import OpenTransaction, Transaction, TransactionDetails

LONGEST_MS: Final = 900_000
"""Kafka's default of transaction.max.timeout.ms."""
MAX_ANSWER: Final = 256 << 20
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
NOT_FOUND: Final = 105
TRIES_S: Final = 0.5
PATIENCE_S: Final = 10.0
T = TypeVar("T")


def list_transactions(
    cluster: Cluster,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    older_than_ms: int | None = None,
    pattern: str = "",
) -> list[Transaction]:
    """The transactional ids that running brokers coordinate, by name, those that match each filter.

    ``pattern`` is a regular expression that matches a whole id. Unreachable; BadInput; Failed names a broker.
    """
    for state in states:
        if state not in requests.STATES:
            raise BadInput(f'states: there is no state "{state}"', f"write {', '.join(requests.STATES)}")
    needed = 2 if pattern else 1 if older_than_ms is not None else 0
    found: list[Transaction] = []
    for broker in _addresses(cluster):

        def read(reader: raw.Reader, broker: int = broker) -> tuple[int, list[Transaction]]:
            return requests.read_transactions(reader, broker)

        def body(version: int) -> bytes:
            age = -1 if older_than_ms is None else older_than_ms
            return requests.list_transactions(version, states, producer_ids, age, pattern)

        ask = partial(_ask, cluster, broker, requests.LIST_TRANSACTIONS, body, read, needed, 2)
        code, of_broker = _patiently(ask, (LOADING,))
        if code:
            raise Failed(f"broker {broker} cannot list its transactional ids", _why(code))
        found += of_broker
    return sorted(found, key=lambda one: (one.transactional_id, one.broker))


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDetails:
    """A transactional id, as its coordinator knows it. Unreachable; Failed, also for an unknown id."""
    passing = LOADING, NOT_AVAILABLE, NOT_COORDINATOR
    code, details = _patiently(partial(_described, cluster, transactional_id), passing)
    if code == NOT_FOUND:
        raise Failed(
            f'there is no transactional id "{transactional_id}"',
            "see millstream transaction list; an id that is not used for transactional.id.expiration.ms is forgotten",
        )
    if code or details is None:
        raise Failed(f"transactional id {transactional_id} cannot be described", _why(code))
    return details


def _described(cluster: Cluster, transactional_id: str) -> tuple[int, TransactionDetails | None]:
    first = min(_addresses(cluster))
    code, broker = _ask(
        cluster, first, requests.FIND_COORDINATOR,
        lambda _: requests.find_coordinator(transactional_id), requests.read_coordinator, 1, 1, flexible=False,
    )  # fmt: skip
    if code:
        return code, None
    described = _ask(
        cluster, broker, requests.DESCRIBE_TRANSACTIONS,
        lambda _: requests.describe_transactions([transactional_id]),
        lambda reader: requests.read_described(reader, broker),
    )  # fmt: skip
    return described[0] if described else (NOT_FOUND, None)


def open_transactions(
    cluster: Cluster, topic: str | None = None, partition: int | None = None
) -> list[OpenTransaction]:
    """The transactions open in the logs of all topics, or of one, or of one partition, by place.

    Partitions without a leader are left out. UnknownTopic; Unreachable; Failed names a broker or partition.
    """
    if topic is not None:
        cluster.partitions(topic)
    led: dict[int, dict[str, list[int]]] = defaultdict(dict)
    for name, about in cluster.metadata().topics.items():
        for number, place in about.partitions.items():
            if topic in (None, name) and partition in (None, number) and place.leader >= 0:
                led[place.leader].setdefault(name, []).append(number)
    found: list[OpenTransaction] = []
    for broker, topics in sorted(led.items()):
        errors, of_broker = _open_at(cluster, broker, requests.describe_producers(topics))
        for (name, number), code in errors.items():
            raise Failed(f"the producers of {name}/{number} cannot be described", _why(code))
        found += of_broker
    return sorted(found, key=lambda one: (one.topic, one.partition, one.start_offset))


def _open_at(
    cluster: Cluster, broker: int, body: bytes
) -> tuple[dict[tuple[str, int], int], list[OpenTransaction]]:
    return _ask(
        cluster,
        broker,
        requests.DESCRIBE_PRODUCERS,
        lambda _: body,
        lambda reader: requests.read_open(reader, broker),
    )


def find_hanging(
    cluster: Cluster,
    topic: str | None = None,
    partition: int | None = None,
    longest_ms: int = LONGEST_MS,
) -> list[OpenTransaction]:
    """Those of ``open_transactions`` that hang, with no records for so long. Unreachable, UnknownTopic, Failed."""
    before_ms = time.time() * 1000 - longest_ms
    opened = [one for one in open_transactions(cluster, topic, partition) if one.last_ms <= before_ms]
    known = known_partitions(cluster, {one.producer_id for one in opened})
    return [one for one in opened if (one.topic, one.partition) not in known[one.producer_id]]


def known_partitions(
    cluster: Cluster, producer_ids: Collection[int]
) -> dict[int, dict[tuple[str, int], TransactionDetails]]:
    """By producer id: the partitions in which a coordinator will end its transaction."""
    known: dict[int, dict[tuple[str, int], TransactionDetails]] = {each: {} for each in producer_ids}
    if producer_ids:
        for one in list_transactions(cluster, producer_ids=sorted(producer_ids)):
            details = describe_transaction(cluster, one.transactional_id)
            known[one.producer_id].update(dict.fromkeys(details.partitions, details))
    return known


def abort(cluster: Cluster, transaction: OpenTransaction) -> None:
    """Write the marker that aborts it in this partition. Unreachable; Failed."""
    code = _ask(
        cluster, transaction.broker, requests.WRITE_TXN_MARKERS,
        lambda _: requests.abort_marker(transaction), requests.read_marked, 1, 1,
    )  # fmt: skip
    if code:
        place = f"{transaction.topic}/{transaction.partition}"
        raise Failed(
            f"the transaction at {place}, offset {transaction.start_offset} was not aborted", _why(code)
        )


def _patiently(ask: Callable[[], tuple[int, T]], passing: Collection[int]) -> tuple[int, T]:
    """The error and the answer; while it is one of these errors, ask again, for PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        code, answer = ask()
        if code not in passing or time.monotonic() > deadline:
            return code, answer
        time.sleep(TRIES_S)


def _addresses(cluster: Cluster) -> dict[int, tuple[str, int]]:
    return {one.id: (one.host, one.port) for one in cluster.first_metadata.brokers.values()}


def _ask(
    cluster: Cluster,
    broker: int,
    api: int,
    body: Callable[[int], bytes],
    read: Callable[[raw.Reader], T],
    oldest: int = 0,
    newest: int = 0,
    *,
    flexible: bool = True,
) -> T:
    """Send a request in the newest version that both know, between these. Failed names the broker."""
    if (address := _addresses(cluster).get(broker)) is None:
        raise Failed(f"broker {broker} is not running", "start it, and try again")
    where = f"broker {broker} at {host_port(*address)}"
    try:
        with raw.connected(*address, cluster.config, REQUEST_TIMEOUT_S) as sock:
            low, high = raw.api_versions(sock).get(api, (0, -1))
            version = min(high, newest)
            if version < max(low, oldest):
                raise Failed(f"{where} is too old for this", "upgrade it, or leave out filters")
            sasl_login.log_in(sock, cluster.config)
            answer = raw.call(sock, api, body(version), version, MAX_ANSWER, flexible=flexible)
    except (OSError, ValueError, struct.error) as error:
        raise Failed(f"{where} does not answer ({error})", "see what millstream doctor says") from None
    try:
        return read(raw.Reader(answer))
    except (struct.error, ValueError):
        raise Failed(
            f"the answer of {where} cannot be read", "use the version of millstream that it has"
        ) from None


def _why(code: int) -> str:
    return str(KafkaError(code).str()) if code else "its answer names nothing"
