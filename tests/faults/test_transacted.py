"""Each anomaly of transactions, made by hand: the checker reports it, and nothing for a correct history."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_faults.history import NEVER, Event, Read, RecordsDeleted, Transacted, value_of
from millstream_faults.replicas import fated
from millstream_faults.transacted import check_transactions
from millstream_faults.violations import ABORTED, COMMITTED, OPEN, Fated, Violation
from millstream_harness.wire import record
from millstream_kafka.batch import build_batch
from millstream_kafka.control_batch import EndTransactionMarker, build_marker

Log = dict[tuple[str, int], list[Fated]]

LISTS, COPIES = "lists", "copies"
SOURCES = {COPIES: LISTS}


def transacted(
    who: str,
    number: int,
    outcome: str,
    *appends: tuple[str, str, int, int],
    reads: tuple = (),
    asked: float = 1.0,
) -> Transacted:
    return Transacted(
        2.0, who, number, outcome, asked, [list(one) for one in appends], [list(one) for one in reads]
    )


def read(who: str, partition: int, offset: int, number: int, writer: str = "a", at: float = 3.0) -> Read:
    return Read(at, who, partition, offset, writer, number, LISTS)


TOLD: list[Event] = [
    transacted("a", 1, COMMITTED, (LISTS, "a", 0, 100), (LISTS, "a", 0, 101), (LISTS, "a", 1, 102)),
    transacted("a", 2, ABORTED, (LISTS, "a", 0, 200), asked=NEVER),
    transacted("a", 3, "unknown", (LISTS, "a", 0, 300), (LISTS, "a", 1, 301)),
    transacted("b", 1, COMMITTED, (LISTS, "b", 0, 100), reads=((LISTS, "a", 0, 100),)),
    transacted("copier-1", 1, COMMITTED, (COPIES, "copier-1/1", 0, 0), (COPIES, "copier-1/1", 0, 1)),
    transacted("copier-1", 2, COMMITTED, (COPIES, "copier-1/2", 0, 4), (COPIES, "copier-1/2", 1, 0)),
]
LOG: Log = {
    (LISTS, 0): [
        Fated(0, "a", 0, 100, COMMITTED),
        Fated(1, "a", 0, 101, COMMITTED),
        Fated(3, "a", 0, 200, ABORTED),
        Fated(4, "b", 0, 100, COMMITTED),
        Fated(6, "a", 0, 300, COMMITTED),
    ],
    (LISTS, 1): [Fated(0, "a", 1, 102, COMMITTED), Fated(2, "a", 1, 301, COMMITTED)],
    (COPIES, 0): [
        Fated(0, "copier-1/1", 0, 0, COMMITTED),
        Fated(1, "copier-1/1", 0, 1, COMMITTED),
        Fated(3, "copier-1/2", 0, 4, COMMITTED),
    ],
    (COPIES, 1): [Fated(0, "copier-1/2", 1, 0, COMMITTED)],
}
READS: list[Event] = [
    *(read("committed-1", 0, offset, number) for offset, number in ((0, 100), (1, 101))),
    read("committed-1", 0, 4, 100, "b"),
    read("committed-1", 1, 0, 102),
    *(read("uncommitted-1", 0, offset, number) for offset, number in ((0, 100), (1, 101), (3, 200))),
]


def found(told: list[Event], log: Log) -> list[Violation]:
    return check_transactions(told, log, SOURCES)


def kinds(told: list[Event], log: Log) -> set[str]:
    return {violation.kind for violation in found(told, log)}


def with_log(partition: int, *entries: Fated, topic: str = LISTS) -> Log:
    return {**LOG, (topic, partition): list(entries)}


def fate_of(partition: int, offset: int, fate: str) -> Log:
    entries = LOG[LISTS, partition]
    return with_log(partition, *(one._replace(fate=fate) if one.offset == offset else one for one in entries))


def test_a_history_that_is_right() -> None:
    assert found(TOLD + READS, LOG) == []


def test_an_unknown_outcome_may_be_nothing_at_all() -> None:
    aborted = {place: [one._replace(fate=ABORTED) if one.number // 100 == 3 else one for one in entries]
               for place, entries in LOG.items()}  # fmt: skip
    assert found(TOLD, aborted) == []
    gone = {place: [one for one in entries if one.number // 100 != 3] for place, entries in LOG.items()}
    assert found(TOLD, gone) == []


IN_A_CIRCLE = (("c", 100), ("d", 100), ("c", 200))
BROKEN: dict[str, tuple[list[Event], Log, str]] = {
    "G1a: a value that is aborted is read": ([read("committed-1", 0, 3, 200)], LOG, "dirty"),
    "G1a: a value is read that no log has": ([read("committed-1", 0, 9, 300)], LOG, "dirty"),
    "a value is read before the commit": ([read("committed-2", 0, 0, 100, at=0.9)], LOG, "early"),
    "G1b: a part of a transaction is read": (
        [read("committed-2", 0, 0, 100), read("committed-2", 0, 4, 100, "b")],
        LOG,
        "skipped",
    ),
    "a reader of everything misses an aborted value": (
        [read("uncommitted-2", 0, 1, 101), read("uncommitted-2", 0, 4, 100, "b")],
        LOG,
        "skipped",
    ),
    "a reader of everything sees what is gone": ([read("uncommitted-2", 0, 9, 300)], LOG, "lost"),
    "an offset is read twice": (
        [read("committed-2", 0, 0, 100), read("committed-2", 0, 0, 100)],
        LOG,
        "backwards",
    ),
    "an offset has two values": ([read("committed-2", 0, 1, 100)], LOG, "value"),
    "a commit is aborted in one partition": ([], fate_of(1, 0, ABORTED), "torn"),
    "a commit is aborted everywhere": (
        [transacted("b", 2, COMMITTED, (LISTS, "b", 0, 200))],
        LOG,
        "lost",
    ),
    "an unknown outcome is half committed": ([], fate_of(1, 2, ABORTED), "torn"),
    "an aborted transaction is committed": ([], fate_of(0, 3, COMMITTED), "revived"),
    "a transaction is open": ([], fate_of(0, 3, OPEN), "unended"),
    "a value is twice in the log": (
        [],
        with_log(1, *LOG[LISTS, 1], Fated(3, "a", 1, 301, ABORTED)),
        "duplicated",
    ),
    "nobody wrote it": ([], with_log(1, *LOG[LISTS, 1], Fated(3, "z", 1, 1, COMMITTED)), "foreign"),
    "it is in another partition": (
        [transacted("z", 1, COMMITTED, (LISTS, "z", 1, 1))],
        with_log(1, *LOG[LISTS, 1], Fated(3, "z", 0, 1, COMMITTED)),
        "foreign",
    ),
    "G0: the transactions of a writer change places": (
        [],
        with_log(1, Fated(0, "a", 1, 301, COMMITTED), Fated(2, "a", 1, 102, COMMITTED)),
        "order",
    ),
    "a copy is missing": ([], with_log(0, LOG[COPIES, 0][0], LOG[COPIES, 0][2], topic=COPIES), "copied"),
    "a copy comes twice": (
        [transacted("copier-2", 1, COMMITTED, (COPIES, "copier-2/1", 1, 0))],
        with_log(1, *LOG[COPIES, 1], Fated(2, "copier-2/1", 1, 0, COMMITTED), topic=COPIES),
        "copied",
    ),
    "what is aborted is copied": (
        [transacted("copier-2", 1, COMMITTED, (COPIES, "copier-2/1", 0, 3))],
        with_log(0, *LOG[COPIES, 0][:2], Fated(2, "copier-2/1", 0, 3, COMMITTED), topic=COPIES),
        "copied",
    ),
    "G1c: transactions read from each other": (
        [
            transacted("c", 1, COMMITTED, (LISTS, "c", 2, 100), reads=((LISTS, "d", 2, 100),)),
            transacted("d", 1, COMMITTED, (LISTS, "d", 2, 100), reads=((LISTS, "c", 2, 200),)),
            transacted("c", 2, COMMITTED, (LISTS, "c", 2, 200)),
        ],
        with_log(2, *(Fated(at, who, 2, number, COMMITTED) for at, (who, number) in enumerate(IN_A_CIRCLE))),
        "cycle",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_anomaly_is_noticed(name: str) -> None:
    more, log, kind = BROKEN[name]
    assert kind in kinds(TOLD + more, log)


def test_deleted_records_are_not_missed() -> None:
    deleted = RecordsDeleted(5.0, "administrator", LISTS, 0, 4, 4.0)
    log = with_log(0, *LOG[LISTS, 0][3:])
    assert found([*TOLD, *READS], log) != []
    assert found([*TOLD, *READS, deleted], log) == []
    missing = with_log(0, *LOG[LISTS, 0][4:])
    assert kinds([*TOLD, deleted], missing) == {"copied"}, "it is missed after the deletion's offset"
    aborted = with_log(0, LOG[LISTS, 0][3]._replace(fate=ABORTED), LOG[LISTS, 0][4])
    assert "lost" in kinds([*TOLD, deleted], aborted)


def test_a_transaction_that_was_aborted_in_one_partition_names_the_value() -> None:
    (torn,) = found(TOLD, fate_of(1, 0, ABORTED))[:1]
    assert (torn.writer, torn.number, torn.partition) == ("a", 102, 1)
    assert torn.text == "transaction 1 of a, committed, is aborted; committed: 2 of 3"


def test_how_transactions_ended_in_a_log(tmp_path: Path) -> None:
    def batch(offset: int, producer: int, number: int, transactional: bool = True) -> bytes:
        value = record(value_of("w", 0, number, 20))
        return build_batch(
            [value], base_offset=offset, producer_id=producer, base_sequence=0, transactional=transactional
        )

    def marker(offset: int, producer: int, committed: bool) -> bytes:
        end = EndTransactionMarker(committed, 0)
        return build_marker(end, producer_id=producer, producer_epoch=0, timestamp=0, base_offset=offset)

    batches = (
        *(batch(0, 7, 0), batch(1, 8, 1), batch(2, 9, 2, False), marker(3, 8, True), batch(4, 8, 4)),
        *(marker(5, 7, False), marker(6, 9, False)),
    )
    (tmp_path / "00000000000000000000.log").write_bytes(b"".join(batches))
    assert fated(tmp_path) == [
        Fated(0, "w", 0, 0, ABORTED),
        Fated(1, "w", 0, 1, COMMITTED),
        Fated(2, "w", 0, 2, COMMITTED),
        Fated(4, "w", 0, 4, OPEN),
    ]
