"""Transactions in a log: what may be appended, which offset is stable, and what a restart remembers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import NotCachedError
from millstream_broker.log.log import Log
from millstream_broker.log.producer_state import LATE_BUFFER_MS, ProducerStateEntry, ProducerStateManager
from millstream_broker.log.transaction_index import AbortedTransaction, TransactionIndexes
from millstream_broker.log.transactions import EndedTransaction, Transactions
from millstream_kafka.appendable import validate
from millstream_kafka.batch import (
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    Record,
    build_batch,
    empty_batch,
    read_header,
)
from millstream_kafka.compression import Compression
from millstream_kafka.control_batch import EndTransactionMarker, build_marker, is_abort, read_marker
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
TRANSACTION, COORDINATOR = AppendOrigin.TRANSACTION, AppendOrigin.COORDINATOR
MARKER, NEXT_EPOCH = AppendOrigin.MARKER, AppendOrigin.MARKER_OF_NEXT_EPOCH


def open_log(tmp_path: Path, *, clean: bool = True, config: LogConfig | None = None) -> Log:
    return Log.open(tmp_path / "t-0", config or LogConfig(), clean=clean, now_ms=NOW)


def records(
    sequence: int, count: int = 2, *, producer: int = 1, epoch: int = 0, transactional: bool = True
) -> bytes:
    return build_batch(
        [Record(b"k", b"v", NOW)] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def verify(log: Log, producer: int = 1, epoch: int = 0, sequence: int = 0, *, bumps: bool = False) -> None:
    verifications = log.producers.verifications
    verifications.verified(verifications.begin(producer, epoch, sequence, bumps_epoch=bumps))


def send(
    log: Log,
    sequence: int,
    count: int = 2,
    *,
    producer: int = 1,
    epoch: int = 0,
    transactional: bool = True,
    origin: AppendOrigin = TRANSACTION,
) -> AppendInfo:
    batch = records(sequence, count, producer=producer, epoch=epoch, transactional=transactional)
    return log.append(batch, leader_epoch=0, now_ms=NOW, origin=origin)


def begin(log: Log, sequence: int = 0, count: int = 2, *, producer: int = 1, epoch: int = 0) -> AppendInfo:
    verify(log, producer, epoch, sequence)
    return send(log, sequence, count, producer=producer, epoch=epoch)


def end(
    log: Log,
    *,
    producer: int = 1,
    epoch: int = 0,
    coordinator: int = 0,
    committed: bool = True,
    origin: AppendOrigin = MARKER,
) -> AppendInfo:
    marker = build_marker(
        EndTransactionMarker(committed, coordinator),
        producer_id=producer,
        producer_epoch=epoch,
        timestamp=NOW,
    )
    return log.append(marker, leader_epoch=0, now_ms=NOW, origin=origin)


def stable(log: Log, high_watermark: int | None = None) -> int:
    limit = log.log_end_offset if high_watermark is None else high_watermark
    return log.producers.transactions.last_stable_offset(limit, log.log_start_offset)


def refusal(run: object) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        run()  # type: ignore[operator]
    return error.value.code


# -- the format -----------------------------------------------------------------------------------------------


def test_marker_has_kafkas_bytes() -> None:
    batch = build_marker(
        EndTransactionMarker(True, 7), producer_id=5, producer_epoch=3, timestamp=NOW, base_offset=9
    )
    header = read_header(batch)
    assert header.attributes == TRANSACTIONAL | CONTROL
    assert (header.base_offset, header.record_count, header.base_sequence) == (9, 1, -1)
    assert (header.producer_id, header.producer_epoch, header.max_timestamp) == (5, 3, NOW)
    key_and_value = b"\x08\x00\x00\x00\x01\x0c\x00\x00\x00\x00\x00\x07\x00"
    assert batch[HEADER_SIZE + 4 :] == key_and_value
    assert read_marker(batch) == (True, 7)


def test_abort_marker_has_type_0() -> None:
    batch = build_marker(EndTransactionMarker(False, 1), producer_id=5, producer_epoch=3, timestamp=NOW)
    assert batch[HEADER_SIZE + 5 : HEADER_SIZE + 9] == bytes(4)
    assert read_marker(batch) == (False, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\0\2", b"\0\0\0\0\0\1"),  # a leader change of KRaft
        (b"\0\0\xff\xff", b"\0\0\0\0\0\1"),
        (b"\xff\xff\0\1", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\1"),
        (b"\0\0\0", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", b"\0\0\0\0\0"),
        (None, b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", None),
    ],
    ids=[
        "leader change", "unknown type", "key version", "value version", "short key", "short value",
        "no key", "no value",
    ],
)  # fmt: skip
def test_marker_of_another_kind_is_none(key: bytes | None, value: bytes | None) -> None:
    batch = build_batch([Record(key, value, NOW)], producer_id=1, producer_epoch=0, control=True)
    assert read_marker(batch) is None


def test_marker_of_a_later_version_is_read() -> None:
    batch = build_batch(
        [Record(b"\0\1\0\1more", b"\0\1\0\0\0\5more", NOW)], producer_id=1, producer_epoch=0, control=True
    )
    assert read_marker(batch) == (True, 5)


@pytest.mark.parametrize(
    ("key", "aborts"),
    [(b"\0\0\0\0", True), (b"\0\1\0\0more", True), (b"\0\0\0\1", False), (b"\0\0\0", False), (None, False)],
    ids=["abort", "abort of a later version", "commit", "short key", "no key"],
)
def test_key_alone_decides_whether_a_marker_aborts(key: bytes | None, aborts: bool) -> None:
    assert is_abort(Record(key, None, NOW)) is aborts


def test_marker_that_compaction_emptied_is_none() -> None:
    batch = build_marker(EndTransactionMarker(True, 7), producer_id=5, producer_epoch=3, timestamp=NOW)
    assert read_marker(empty_batch(read_header(batch))) is None


def test_damaged_marker_is_none() -> None:
    batch = bytearray(
        build_marker(EndTransactionMarker(True, 7), producer_id=5, producer_epoch=3, timestamp=NOW)
    )
    batch[HEADER_SIZE] = 0x7F
    assert read_marker(batch) is None


@pytest.mark.parametrize(
    ("batch", "allowed", "code"),
    [
        (records(0), 0, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (records(0, producer=-1, epoch=-1), TRANSACTIONAL, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (records(-1), TRANSACTIONAL, ErrorCode.INVALID_RECORD),
        (records(0, epoch=-1), TRANSACTIONAL, ErrorCode.INVALID_RECORD),
        (records(0, epoch=-1), TRANSACTIONAL | CONTROL, ErrorCode.INVALID_RECORD),
        (
            build_marker(EndTransactionMarker(True, 0), producer_id=1, producer_epoch=0, timestamp=NOW),
            TRANSACTIONAL,
            ErrorCode.INVALID_RECORD,
        ),
    ],
    ids=[
        "no id",
        "no producer",
        "no sequence",
        "no epoch",
        "a coordinator's without epoch",
        "a client's marker",
    ],
)
def test_transactional_batch_of_a_client_is_refused(batch: bytes, allowed: int, code: ErrorCode) -> None:
    assert refusal(lambda: validate(batch, allowed=allowed)) is code


def test_batches_are_allowed_by_their_origin(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    verify(log)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert refusal(lambda: send(log, 0, origin=AppendOrigin.CLIENT)) is refused
    assert refusal(lambda: end(log, origin=AppendOrigin.CLIENT)) is ErrorCode.INVALID_RECORD
    assert refusal(lambda: end(log, origin=TRANSACTION)) is ErrorCode.INVALID_RECORD
    assert send(log, 0).first_offset == 0
    assert send(log, -1, producer=2, transactional=False, origin=COORDINATOR).first_offset == 2


def test_compression_type_keeps_transactional_batches_and_leaves_markers_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(compression_type="gzip"))
    begin(log)
    end(log)
    data, marker = log.segments.headers_from(0)
    assert (data.compression, data.is_transactional) == (Compression.GZIP, True)
    assert (marker.compression, marker.is_control) == (Compression.NONE, True)


# -- verification ---------------------------------------------------------------------------------------------


def test_unverified_records_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert refusal(lambda: send(log, 0)) is ErrorCode.INVALID_TXN_STATE
    log.producers.verifications.begin(1, 0, 0, bumps_epoch=False)  # not answered yet
    assert refusal(lambda: send(log, 0)) is ErrorCode.INVALID_TXN_STATE
    verify(log, epoch=1)
    assert refusal(lambda: send(log, 0)) is ErrorCode.INVALID_TXN_STATE
    assert log.log_end_offset == 0


def test_open_transaction_needs_no_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    assert log.producers.is_open(1, 0)
    assert not log.producers.is_open(1, 1)
    assert not len(log.producers.verifications)
    assert send(log, 2).first_offset == 2


def test_records_after_the_end_need_a_new_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log)
    assert not log.producers.is_open(1, 0)
    assert refusal(lambda: send(log, 2)) is ErrorCode.INVALID_TXN_STATE
    assert begin(log, 2).first_offset == 3


def test_marker_ends_a_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    verifications = log.producers.verifications
    guard = verifications.begin(1, 0, 0, bumps_epoch=False)
    end(log, committed=False)
    assert refusal(lambda: verifications.verified(guard)) is ErrorCode.INVALID_TXN_STATE
    verify(log, epoch=0)
    end(log, committed=False)
    assert refusal(lambda: send(log, 0)) is ErrorCode.INVALID_TXN_STATE


def test_requests_that_wait_share_a_guard(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    verifications = log.producers.verifications
    first = verifications.begin(1, 0, 4, bumps_epoch=True)
    assert verifications.begin(1, 0, 6, bumps_epoch=False) is first
    assert (first.lowest_sequence, first.bumps_epoch) == (4, False)
    verifications.verified(first)
    assert refusal(lambda: send(log, 6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 4).first_offset == 0
    assert verifications.begin(1, 1, 0, bumps_epoch=True) is not first


def test_first_records_of_an_unknown_producer_have_sequence_0_if_epochs_rise(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    verify(log, sequence=3, bumps=True)
    assert refusal(lambda: send(log, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    verify(log, sequence=0, bumps=True)
    assert send(log, 0).first_offset == 0
    verify(log, producer=2, sequence=3)
    assert send(log, 3, producer=2).first_offset == 2


def test_oldest_guard_is_dropped_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream_broker.log.verifications.MOST", 2)
    verifications = ProducerStateManager().verifications
    for producer, epoch in ((1, 0), (1, 1), (1, 0), (2, 0), (3, 0)):
        verifications.begin(producer, epoch, 0, bumps_epoch=False)
    kept = [(2, 0), (3, 0)]
    every = [(producer, epoch) for producer in (1, 2, 3) for epoch in (0, 1)]
    assert [each for each in every if verifications.find(*each) is not None] == kept
    assert len(verifications) == 2
    verifications.end(2)
    verifications.end(2)
    assert len(verifications) == 1


def test_question_about_another_epoch_removes_no_guard(tmp_path: Path) -> None:
    """Anybody may ask about any producer: batches show their ids."""
    log = open_log(tmp_path)
    verifications = log.producers.verifications
    guard = verifications.begin(1, 1, 0, bumps_epoch=True)
    for epoch in (0, 2):
        verifications.begin(1, epoch, 0, bumps_epoch=True)
    verifications.verified(guard)
    assert refusal(lambda: send(log, 0, epoch=2)) is ErrorCode.INVALID_TXN_STATE
    assert send(log, 0, epoch=1).first_offset == 0
    assert not len(verifications), "the others are worth nothing from now on"


# -- records and markers --------------------------------------------------------------------------------------


def test_plain_batch_within_a_transaction_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    plain = AppendOrigin.CLIENT
    code = refusal(lambda: send(log, 2, transactional=False, origin=plain))
    assert code is ErrorCode.INVALID_TXN_STATE
    end(log)
    assert send(log, 2, transactional=False, origin=plain).first_offset == 3


def test_plain_batch_behind_a_transactional_one_of_the_same_append_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    verify(log)
    both = records(0) + records(2, transactional=False)
    append = lambda: log.append(both, leader_epoch=0, now_ms=NOW, origin=TRANSACTION)  # noqa: E731
    assert refusal(append) is ErrorCode.INVALID_TXN_STATE
    assert log.log_end_offset == 0


def test_repeated_transactional_batch_is_a_duplicate(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    assert send(log, 0) == (0, 1, NOW, 0, True)
    end(log)
    assert send(log, 0).duplicate


def test_sequences_continue_after_a_marker_of_the_same_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log)
    verify(log, sequence=3)
    assert refusal(lambda: send(log, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert begin(log, 2).first_offset == 3


def test_marker_of_the_next_epoch_begins_sequences_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log, epoch=1, origin=NEXT_EPOCH)
    assert log.producers.by_id[1].epoch == 1
    verify(log, epoch=0, sequence=2)
    assert refusal(lambda: send(log, 2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert begin(log, 0, epoch=1).first_offset == 3


#                                     origin, open, epoch of the marker, whether it is appended
@pytest.mark.parametrize(
    ("origin", "is_open", "epoch", "accepted"),
    [
        (MARKER, True, 4, False),
        (MARKER, True, 5, True),
        (MARKER, True, 6, True),
        (MARKER, False, 5, True),
        (NEXT_EPOCH, True, 4, False),
        (NEXT_EPOCH, True, 5, False),
        (NEXT_EPOCH, True, 6, True),
        (NEXT_EPOCH, False, 4, False),
        (NEXT_EPOCH, False, 5, True),
        (NEXT_EPOCH, False, 6, True),
    ],
)
def test_epoch_of_a_marker(
    tmp_path: Path, origin: AppendOrigin, is_open: bool, epoch: int, accepted: bool
) -> None:
    log = open_log(tmp_path)
    begin(log, epoch=5)
    if not is_open:
        end(log, epoch=5)
    before = log.log_end_offset
    if accepted:
        assert end(log, epoch=epoch, origin=origin).first_offset == before
        assert not log.producers.is_open(1, epoch)
    else:
        code = refusal(lambda: end(log, epoch=epoch, origin=origin))
        assert (code, log.log_end_offset) == (ErrorCode.INVALID_PRODUCER_EPOCH, before)
        assert log.producers.is_open(1, 5) == is_open


def test_largest_epoch_needs_no_higher_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, epoch=0x7FFF)
    end(log, epoch=0x7FFF, origin=NEXT_EPOCH)
    assert stable(log) == 3


def test_marker_of_an_older_coordinator_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log, coordinator=5)
    begin(log, 2)
    assert refusal(lambda: end(log, coordinator=4)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end(log, coordinator=5)
    begin(log, 4)
    end(log, coordinator=6)
    assert log.producers.by_id[1].coordinator_epoch == 6


@pytest.mark.parametrize(
    "config", [LogConfig(max_message_bytes=10), LogConfig(segment_bytes=10)], ids=["message", "segment"]
)
def test_a_lower_limit_refuses_no_marker_of_an_open_transaction(tmp_path: Path, config: LogConfig) -> None:
    log = open_log(tmp_path)
    begin(log)
    log.reconfigure(config)
    marker = build_marker(EndTransactionMarker(True, 0), producer_id=1, producer_epoch=0, timestamp=NOW)
    log.append(marker, leader_epoch=0, now_ms=NOW, origin=MARKER)
    assert not log.producers.transactions.open


def test_marker_of_an_unknown_producer_ends_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    end(log, committed=False, coordinator=3, epoch=2)
    assert stable(log, 0) == 0
    assert not log.producers.transactions
    assert not log.segments.aborted
    producer = log.producers.by_id[1]
    assert (producer.epoch, producer.coordinator_epoch, producer.batches) == (2, 3, [])


def test_a_producers_last_timestamp_is_that_of_its_batch_or_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    producer = log.producers.by_id[1]
    assert (producer.last_timestamp, producer.last_timestamp == producer.last.timestamp) == (NOW, True)
    marker = build_marker(EndTransactionMarker(True, 0), producer_id=1, producer_epoch=1, timestamp=NOW + 5)
    log.append(marker, leader_epoch=0, now_ms=NOW + 9, origin=MARKER)
    assert (producer.last_timestamp, producer.batches) == (NOW + 5, [])
    assert ProducerStateManager.decode(log.producers.encode()).by_id[1].last_timestamp == NOW + 9
    begin(log, epoch=1)
    assert producer.last_timestamp == NOW
    assert ProducerStateEntry(0, NOW).last_timestamp == -1


def test_protocol_of_a_refused_request_does_not_count_for_the_next_epoch(tmp_path: Path) -> None:
    """In Kafka it does: the next transaction could begin in the middle."""
    log = open_log(tmp_path)
    log.producers.verifications.begin(1, 0, 0, bumps_epoch=False)
    verify(log, epoch=1, sequence=3, bumps=True)
    assert refusal(lambda: send(log, 3, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("sequence", [-1, 0], ids=["none", "first"])
def test_coordinators_batches_have_epochs_but_no_sequences(tmp_path: Path, sequence: int) -> None:
    """Each has the same: in Kafka the first, and none if an earlier version of ours has written it."""
    log = open_log(tmp_path)
    verify(log, epoch=1, sequence=-1)
    send(log, sequence, epoch=1, origin=COORDINATOR)
    assert send(log, sequence, epoch=1, origin=COORDINATOR).first_offset == 2
    end(log, epoch=1)
    verify(log, epoch=0, sequence=-1)
    assert (
        refusal(lambda: send(log, sequence, epoch=0, origin=COORDINATOR)) is ErrorCode.INVALID_PRODUCER_EPOCH
    )


def test_coordinators_batch_needs_verification(tmp_path: Path) -> None:
    assert refusal(lambda: send(open_log(tmp_path), -1, origin=COORDINATOR)) is ErrorCode.INVALID_TXN_STATE


# -- the last stable offset -----------------------------------------------------------------------------------


def test_open_transaction_keeps_the_stable_offset_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, producer=9, transactional=False)
    assert stable(log) == 2
    begin(log)
    send(log, 2, producer=9, transactional=False)
    assert stable(log) == 2
    end(log)
    assert stable(log) == 7
    assert stable(log, 6) == 6  # forgotten: it was replicated before


def test_marker_counts_once_it_is_replicated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log)
    assert stable(log, 0) == 0
    assert stable(log, 1) == 0
    assert stable(log, 2) == 0
    assert stable(log, 3) == 3


def test_ended_transactions_are_replicated_in_any_order() -> None:
    transactions = Transactions()
    transactions.begin(0, 1)
    transactions.begin(5, 2)
    assert transactions.end(5, 2, 7, committed=True) == EndedTransaction(2, 5, 7, 0, True)
    assert transactions.end(0, 1, 9, committed=False) == EndedTransaction(1, 0, 9, 10, False)
    assert [transactions.first_unstable(high) for high in (0, 7, 8, 9)] == [0, 0, 0, 0]
    assert transactions
    assert transactions.first_unstable(10) is None
    assert not transactions


def test_first_of_open_and_ended_transactions_counts() -> None:
    transactions = Transactions([(8, 1), (3, 2)])
    assert list(transactions.open.items()) == [(3, 2), (8, 1)]
    transactions.end(3, 2, 20, committed=True)
    assert transactions.first_unstable(20) == 3
    assert transactions.first_unstable(21) == 8
    assert transactions.last_stable_offset(6, 0) == 6
    assert transactions.last_stable_offset(8, 0) == 8
    assert transactions.last_stable_offset(30, 0) == 8
    assert transactions.last_stable_offset(30, 9) == 9
    assert transactions.last_stable_offset(30, 31) == 30


def test_deleted_records_do_not_keep_the_stable_offset_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, count=4)
    assert stable(log) == 0
    log.delete_records_before(2)
    assert stable(log) == 2


def test_open_transaction_does_not_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    assert log.producers.expire(NOW + 1) == 0
    end(log)
    assert log.producers.expire(NOW + 1) == 1


# -- aborted transactions -------------------------------------------------------------------------------------


def test_aborted_transactions_are_noted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)  # 0, 1
    begin(log, producer=2)  # 2, 3
    begin(log, producer=3)  # 4, 5
    end(log, committed=False)  # 6
    end(log, producer=3)  # 7
    end(log, producer=2, committed=False)  # 8
    expected = [AbortedTransaction(1, 0, 6, 2), AbortedTransaction(2, 2, 8, 9)]
    assert log.segments.aborted.collect(0, 0, 9) == expected
    data = Path(log.segments.aborted.path(0)).read_bytes()
    assert data == b"".join(bytes(2) + b"".join(n.to_bytes(8, "big") for n in each) for each in expected)


@pytest.mark.parametrize("clean", [True, False])
def test_restart_remembers_transactions(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    begin(log)
    begin(log, producer=2)
    end(log, committed=False, coordinator=4)
    begin(log, 2)
    log.close(clean)
    log = open_log(tmp_path, clean=clean)
    assert log.producers.transactions.open == {2: 2, 5: 1}
    assert stable(log) == 2
    assert log.producers.by_id[1].coordinator_epoch == 4
    assert log.segments.aborted.collect(0, 0, 99) == [AbortedTransaction(1, 0, 4, 2)]
    end(log, producer=2, committed=False)
    end(log, coordinator=4)
    assert stable(log) == 9
    assert log.segments.aborted.collect(0, 0, 99)[1:] == [AbortedTransaction(2, 2, 7, 5)]


@pytest.mark.parametrize("damage", ["missing", "torn", "garbled", "ahead", "empty"])
def test_recovery_restores_aborted_transactions(tmp_path: Path, damage: str) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log, committed=False)
    begin(log, 2)
    end(log, committed=False)
    path = Path(log.segments.aborted.path(0))
    expected = log.segments.aborted.collect(0, 0, 99)
    whole = path.read_bytes()
    log.close(clean=False)
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(whole[:40])
    elif damage == "garbled":
        path.write_bytes(bytes(1) + whole[:67])
    elif damage == "ahead":
        path.write_bytes(whole + bytes(2) + b"".join(n.to_bytes(8, "big") for n in (1, 6, 8, 9)))
    else:
        path.write_bytes(b"")
    log = open_log(tmp_path, clean=False)
    assert log.segments.aborted.collect(0, 0, 99) == expected
    assert path.read_bytes() == whole


def test_damaged_index_of_an_older_segment_is_rebuilt(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200)
    log = open_log(tmp_path, config=config)
    for sequence in range(0, 12, 2):
        begin(log, sequence)
        end(log, committed=False)
    expected = log.segments.aborted.collect(0, 0, 99)
    paths = [Path(log.segments.aborted.path(base)) for base in log.segments.aborted.bases]
    whole = [path.read_bytes() for path in paths]
    assert len(paths) > 2
    log.close()
    paths[1].write_bytes(whole[1][:-1])
    log = open_log(tmp_path, config=config)
    assert log.segments.aborted.collect(0, 0, 99) == expected
    assert [path.read_bytes() for path in paths] == whole


def test_truncation_restores_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)  # 0, 1
    end(log, committed=False)  # 2
    begin(log, 2)  # 3, 4
    end(log, committed=False)  # 5
    log.truncate_to(5, now_ms=NOW)
    assert log.producers.transactions.open == {3: 1}
    assert stable(log) == 3
    assert log.segments.aborted.collect(0, 0, 99) == [AbortedTransaction(1, 0, 2, 3)]
    assert len(Path(log.segments.aborted.path(0)).read_bytes()) == 34
    log.truncate_to(2, now_ms=NOW)
    assert log.producers.transactions.open == {0: 1}
    assert log.segments.aborted.collect(0, 0, 99) == []


def test_truncation_to_the_end_of_a_clean_stop_removes_later_entries(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    log.close()
    log = open_log(tmp_path)
    end(log, committed=False)
    assert log.segments.aborted.collect(0, 0, 99)
    log.truncate_to(2, now_ms=NOW)
    assert log.segments.aborted.collect(0, 0, 99) == []
    end(log, committed=True)
    log.close(clean=False)
    assert open_log(tmp_path, clean=False).segments.aborted.collect(0, 0, 99) == []


def test_full_disk_keeps_aborted_transactions_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    begin(log)
    path = Path(log.segments.aborted.path(0))
    opened = os.open

    def full(name: str, flags: int, mode: int = 0o777) -> int:
        if str(name).endswith(".txnindex"):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return opened(name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        end(log, committed=False)
        with pytest.raises(OSError, match="No space"):
            log.roll(now_ms=NOW)  # its snapshot would be ahead of the index
    assert log.offline is None
    with pytest.raises(ApiError, match="not written yet"):
        log.flush()
    assert log.segments.aborted.collect(0, 0, 99) == [AbortedTransaction(1, 0, 2, 3)]
    assert not path.exists()
    log.roll(now_ms=NOW)
    assert path.stat().st_size == 34
    assert log.flush() == 3


def test_flush_syncs_aborted_transactions_once(tmp_path: Path, fsynced: list[str]) -> None:
    log = open_log(tmp_path)
    path = log.segments.aborted.path(0)
    for sequence in (0, 2):
        begin(log, sequence)
        end(log, committed=False)
        fsynced.clear()
        log.flush()
        assert path in fsynced
        begin(log, sequence, producer=2)
        end(log, producer=2)
        fsynced.clear()
        log.flush()
        assert path not in fsynced


def test_retention_removes_the_indexes_of_its_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in (0, 2):
        begin(log, sequence)
        end(log, committed=False)
        log.roll(now_ms=NOW)
    assert log.segments.aborted.bases == [0, 3]
    log.delete_records_before(3)
    log.remove_deleted_files()
    assert log.segments.aborted.bases == [3]
    assert [path.stem for path in (tmp_path / "t-0").glob("*.txnindex*")] == [f"{3:020d}"]
    assert log.segments.aborted.collect(0, 0, 99) == [AbortedTransaction(1, 3, 5, 6)]


def test_moved_log_keeps_its_aborted_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log, committed=False)
    log.segments.move(str(tmp_path / "moved-0"))
    assert Path(log.segments.aborted.path(0)) == tmp_path / "moved-0" / f"{0:020d}.txnindex"
    assert Path(log.segments.aborted.path(0)).exists()


def test_index_that_is_not_loaded_is_left_to_a_thread(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    end(log, committed=False)
    log.close()
    log = open_log(tmp_path)
    log.segments.aborted = TransactionIndexes(log.segments.path)
    log.segments.aborted.found(0)
    assert log.read(0, 1000, upper=9, min_one=True)
    with pytest.raises(NotCachedError):
        log.aborted_before_read_end(0, may_wait=False)
    log.loading(0, 1000, upper=9)()
    assert log.aborted_before_read_end(0, may_wait=False) == [AbortedTransaction(1, 0, 2, 3)]


def test_follower_has_the_leaders_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log)
    begin(log, producer=2)
    end(log, committed=False)
    follower = Log.open(tmp_path / "f-0", LogConfig(), clean=True, now_ms=NOW)
    follower.append_as_follower(b"".join(log.batches_from(0)), now_ms=NOW)
    assert follower.producers.transactions.open == {2: 2}
    assert stable(follower) == stable(log) == 2
    assert follower.segments.aborted.collect(0, 0, 9) == log.segments.aborted.collect(0, 0, 9)
    end(log, producer=2)
    follower.append_as_follower(next(log.batches_from(5)), now_ms=NOW)
    assert stable(follower) == stable(log) == 6
    assert stable(follower, 5) == 5


def test_read_gets_the_aborted_transactions_of_its_range(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in (0, 2, 4):
        begin(log, sequence)  # 0–1, 3–4, 6–7
        end(log, committed=False)  # 2, 5, 8
    begin(log, producer=2)
    size = len(records(0))
    for offset, most, expected in [
        (0, size, [0]),
        (0, size + 78, [0]),  # up to the first record of the next transaction
        (0, 2 * size + 100, [0, 3]),
        (3, 1 << 20, [3, 6]),
        (2, 1 << 20, [0, 3, 6]),  # a marker alone needs its transaction, too
        (9, 1 << 20, []),
    ]:
        log.read(offset, most, upper=99, min_one=True)
        assert [each.first_offset for each in log.aborted_before_read_end(offset)] == expected


def test_the_oldest_transaction_is_late_after_the_longest_timeout_and_a_buffer(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    late_at = NOW + 900_000 + LATE_BUFFER_MS + 1

    def is_late(now_ms: int) -> bool:
        return log.producers.has_late_transaction(now_ms, 900_000)

    assert not is_late(late_at)
    begin(log, producer=2)
    begin(log, producer=1)
    assert not is_late(late_at - 1)
    assert is_late(late_at)
    log.producers.by_id[2].last_seen_ms += 1  # it has sent more: the other one counts when it is the oldest
    assert not is_late(late_at)
    end(log, producer=2)
    assert is_late(late_at)
    end(log, producer=1)
    assert not is_late(late_at)
