"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, InitProducerId: writes and reads."""

from __future__ import annotations

import struct
import time
from typing import Any
from uuid import UUID

import pytest

from millstream_harness.beside import Answers, Beside, Its, build
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.compression import Compression
from millstream_kafka.protocol import (
    delete_records,
    delete_topics,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

T0 = 1_600_000_000_000
NOBODY = UUID("12345678-1234-5678-1234-567812345678")


def batch(*values: str, at: int = T0, key: bytes | None = b"k", **more: Any) -> bytes:
    return build_batch([Record(key, value.encode(), at + step) for step, value in enumerate(values)], **more)


def records_at(*timestamps: int, **more: Any) -> bytes:
    return build_batch([Record(b"k", b"v", each) for each in timestamps], **more)


def send(
    beside: Beside,
    name: str,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    versions: list[int] | None = None,
    transactional_id: str | None = None,
    but: dict[str, str] | None = None,
) -> None:
    beside.same(
        produce.API,
        versions,
        but=but,
        acks=acks,
        timeout_ms=10_000,
        transactional_id=transactional_id,
        topic_data=[{"name": name, "partition_data": [{"index": partition, "records": records}]}],
    )


def refuse(beside: Beside, name: str, records: bytes) -> None:
    """Records that are refused individually."""
    send(beside, name, records, versions=[3, 4])
    send(beside, name, records, versions=[*range(5, 12)], but={"log_start_offset": START})


def read(
    beside: Beside,
    name: str,
    offset: int,
    *,
    partition: int = 0,
    versions: list[int] | None = None,
    partition_max_bytes: int = 1_000_000,
    epoch: int = -1,
    but: dict[str, str] | None = None,
    **more: Any,
) -> None:
    asked = {
        "partition": partition,
        "fetch_offset": offset,
        "current_leader_epoch": epoch,
        "partition_max_bytes": partition_max_bytes,
    }
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1_000_000, **more}
    beside.same(fetch.API, versions, but=but, topics=[topic(beside, name, asked)], **limits)


def topic(beside: Beside, name: str, *partitions: Any) -> dict[str, Any]:
    """A topic of a Fetch request, with its name and its id."""
    its = Its(f"id of {name}")
    return {
        "topic": name,
        "topic_id": its if its.name in beside.ours.kept else NOBODY,
        "partitions": list(partitions),
    }


def offsets(
    beside: Beside, name: str, *timestamps: int, epoch: int = -1, partition: int = 0, **more: Any
) -> None:
    for timestamp in timestamps:
        asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
        beside.same(list_offsets.API, replica_id=-1, topics=[{"name": name, "partitions": [asked]}], **more)


@pytest.fixture(autouse=True, scope="module")
def there(beside: Beside) -> None:
    beside.create("written", "sought", "sought-empty", "cut-off", "idempotent", "epochs")
    beside.create("small", max_message_bytes="200")
    beside.create("stamped", message_timestamp_type="LogAppendTime")
    beside.create(
        "in-time", message_timestamp_before_max_ms="1000000", message_timestamp_after_max_ms="1000000"
    )
    beside.create("compacted", cleanup_policy="compact")
    beside.create("gzipped", compression_type="gzip")
    beside.create("two-replicas", min_insync_replicas="2")
    beside.create("small-segments", segment_bytes="1048576", max_message_bytes="1900000")


def test_records_are_written_and_read(beside: Beside) -> None:
    for acks in (-1, 1):
        send(beside, "written", batch("a", "b", "c"), acks=acks)
    for offset in (0, 1, 2, 3, 5, 47, 48):
        read(beside, "written", offset)
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4):
        send(beside, "written", batch("a" * 100, "b" * 100, compression=codec))
    read(beside, "written", 50)
    send(beside, "written", batch("a" * 100, compression=Compression.ZSTD))
    read(beside, "written", 60, versions=[4, 8, 9, 10, 11, 12])


def edited(records: bytes, position: int, form: str, value: int, *, crc: bool = True) -> bytes:
    from crc32c import crc32c

    changed = bytearray(records)
    struct.pack_into(form, changed, position, value)
    if crc:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


GOOD = batch("a", "b", "c")
REFUSED = {
    "empty": b"",
    "one byte": b"\0",
    "half a header": GOOD[:30],
    "half a batch": GOOD[:-5],
    "bad CRC": edited(GOOD, 70, ">b", 77, crc=False),
    "magic 3": edited(GOOD, 16, ">b", 3),
    "magic -1": edited(GOOD, 16, ">b", -1),
    "magic 1": edited(GOOD, 16, ">b", 1),
    "magic 0": edited(GOOD, 16, ">b", 0),
    "length 0": edited(GOOD, 8, ">i", 0),
    "length negative": edited(GOOD, 8, ">i", -5),
    "length huge": edited(GOOD, 8, ">i", 2_000_000_000),
    "no records": edited(GOOD, 57, ">i", 0),
    "too few records": edited(GOOD, 57, ">i", 2),
    "too many records": edited(GOOD, 57, ">i", 4),
    "negative count": edited(GOOD, 57, ">i", -1),
    "delta too large": edited(GOOD, 23, ">i", 7),
    "base offset": edited(GOOD, 0, ">q", 5),
    "negative base offset": edited(GOOD, 0, ">q", -5),
    "control": edited(GOOD, 21, ">h", 0x20),
    "transactional": batch("a", transactional=True),
    "transactional, with a producer": batch(
        "a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0
    ),
    "producer without a sequence": batch("a", producer_id=5, producer_epoch=0, base_sequence=-1),
    "sequence without a producer": batch("a", producer_id=-1, producer_epoch=0, base_sequence=0),
    "leader epoch": edited(GOOD, 12, ">i", 77),
}


TELLS_START = {
    *(
        "no records",
        "too few records",
        "too many records",
        "negative count",
        "delta too large",
        "base offset",
    ),
    *("negative base offset", "control", "producer without a sequence"),
}
BEHIND = "Kafka drops what stands behind a whole batch; here a batch is all that a client may send."
BITS = "Kafka stores bits that mean nothing, or nothing from a producer."
CODEC = "Kafka answers UNKNOWN_SERVER_ERROR."
UNREAD = (
    "Records are stored as they come, without being decompressed or counted, while nothing asks for more."
)
EPOCH = "Kafka takes a producer id without an epoch."
START = "Of a batch that is refused for its records, Kafka's answer has the start of the log."
SEVERAL = "Kafka takes one batch a partition and request."
DIFFERENT = {
    "a batch and a half": (GOOD + GOOD[:30], BEHIND),
    "bytes behind": (GOOD + b"\0\0", BEHIND),
    "codec 5": (edited(GOOD, 21, ">h", 5), CODEC),
    "codec 7": (edited(GOOD, 21, ">h", 7), CODEC),
    "unknown attribute": (edited(GOOD, 21, ">h", 0x80), BITS),
    "delete horizon": (edited(GOOD, 21, ">h", 0x40), BITS),
    "log append time": (edited(GOOD, 21, ">h", 0x08), BITS),
    "gzip that is none": (edited(GOOD, 21, ">h", 1), UNREAD),
    "producer without an epoch": (batch("a", producer_id=5, producer_epoch=-1, base_sequence=0), EPOCH),
    "two batches": (batch("a") + batch("b"), SEVERAL),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_records_that_only_one_of_them_refuses(beside: Beside, case: str) -> None:
    name = f"different-{list(DIFFERENT).index(case)}"
    beside.create(name)
    records, why = DIFFERENT[case]
    send(beside, name, records, versions=[9], but={"partition_responses[0]": why})


@pytest.mark.parametrize("case", REFUSED)
def test_records_that_are_refused(beside: Beside, case: str) -> None:
    name = f"refused-{list(REFUSED).index(case)}"
    beside.create(name)
    starts = {"log_start_offset": START} if case in TELLS_START else {}
    send(beside, name, REFUSED[case], versions=[3, 4])
    send(beside, name, REFUSED[case], versions=[*range(5, 12)], but=starts)
    offsets(beside, name, -1)
    read(beside, name, 0, versions=[12])


def test_requests_to_write_that_are_refused(beside: Beside) -> None:
    for name, partition in (("no-such", 0), ("written", 7), ("written", -1), ("", 0), ("a/b", 0)):
        send(beside, name, GOOD, partition=partition)
    for acks in (2, -2, 100):
        send(beside, "written", GOOD, acks=acks)
    send(beside, "small", batch("a" * 300))
    send(beside, "two-replicas", GOOD)
    send(beside, "two-replicas", GOOD, acks=1)
    send(beside, "small-segments", batch("a" * 1_100_000), versions=[11])
    refuse(beside, "compacted", batch("a", key=None))
    send(beside, "compacted", GOOD)
    refuse(beside, "compacted", batch("a", key=None, compression=Compression.GZIP))
    send(beside, "gzipped", GOOD)
    send(beside, "gzipped", batch("a", compression=Compression.ZSTD), versions=[*range(3, 12)])
    refuse(beside, "in-time", GOOD)
    refuse(beside, "in-time", batch("a", "b", at=4_000_000_000_000))
    send(beside, "in-time", batch("a", at=-1))
    send(beside, "stamped", GOOD)
    refuse(beside, "written", batch("future", at=4_000_000_000_000))
    refuse(beside, "written", batch("least", at=-(2**63)))
    send(beside, "written", batch("long ago", at=-(2**62)))
    for name in ("small", "compacted", "gzipped", "in-time", "stamped"):
        offsets(beside, name, -1)


def test_several_partitions_in_a_request(beside: Beside) -> None:
    beside.create("several", partitions=3)
    data = [{"index": index, "records": GOOD} for index in (0, 1, 7)] + [{"index": 2, "records": b"x"}]
    topics = [{"name": "several", "partition_data": data}, {"name": "no-such", "partition_data": data[:1]}]
    beside.same(produce.API, range(3, 13), acks=-1, timeout_ms=1000, topic_data=topics)
    beside.same(produce.API, acks=-1, timeout_ms=1000, topic_data=[])


def test_writing_without_an_answer(beside: Beside) -> None:
    """An error with acks=0 closes the connection, because nothing else could report it."""
    for name, records in (("no-such", GOOD), ("written", REFUSED["bad CRC"]), ("small", batch("a" * 300))):
        send(beside, name, records, acks=0)
    data = [{"name": "written", "partition_data": [{"index": 0, "records": GOOD}]}]
    for peer in beside.peers:
        peer.wire.send(produce.API, 9, build(produce.API.request, {"topic_data": data}, peer, 9))
        peer.disconnect()


def test_reading_that_is_refused(beside: Beside) -> None:
    send(beside, "cut-off", GOOD, versions=[9])
    send(beside, "cut-off", GOOD, versions=[9])
    for offset in (-1, -2, 7, 100):
        read(beside, "cut-off", offset)
    for name, partition in (("no-such", 0), ("cut-off", 1), ("cut-off", -1), ("", 0)):
        read(beside, name, 0, partition=partition)
    for epoch in (0, 1, 7, -2):
        read(beside, "cut-off", 0, epoch=epoch)
        read(beside, "cut-off", 100, epoch=epoch)
    partitions = [{"partition_index": 0, "offset": 4}]
    beside.same(
        delete_records.API, [2], topics=[{"name": "cut-off", "partitions": partitions}], timeout_ms=10_000
    )
    for offset in (0, 3, 4, 5, 6, 7):
        read(beside, "cut-off", offset)
    offsets(beside, "cut-off", -1, -2, -3, 0, T0, T0 + 1)


def test_how_much_is_read(beside: Beside) -> None:
    beside.create("sized")
    for value in ("a" * 100, "b" * 1000, "c" * 100):
        send(beside, "sized", batch(value), versions=[9])
    for partition_max, total in (
        (1, 10_000),
        (0, 10_000),
        (10_000, 1),
        (10_000, 0),
        (200, 10_000),
        (10_000, 300),
    ):
        for offset in (0, 1, 2):
            read(beside, "sized", offset, partition_max_bytes=partition_max, max_bytes=total)
    for least in (0, 1, 100_000):
        read(beside, "sized", 0, min_bytes=least)
        read(beside, "sized", 3, min_bytes=least)
    read(beside, "sized", 0, isolation_level=1)
    read(beside, "sized", 3, isolation_level=1)
    beside.create("sized-too")
    send(beside, "sized-too", batch("d" * 500), versions=[9])
    topics = [
        topic(beside, name, {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000})
        for name in ("sized", "sized-too", "no-such")
    ]
    for most in (1, 150, 200, 10_000):
        beside.same(fetch.API, topics=topics, max_bytes=most, min_bytes=1)
    beside.same(fetch.API, topics=[], max_bytes=1000)
    read(beside, "sized", 0, replica_id=-2)


@pytest.mark.parametrize("version", [12, 13])
def test_fetch_sessions(beside: Beside, version: int) -> None:
    def partition(index: int = 0, offset: int = 0) -> dict[str, int]:
        return {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1000}

    asked = [topic(beside, "written", partition())]
    for session_id, epoch in ((0, -1), (123, 1), (123, -1), (-5, 1), (0, 5)):
        beside.same(fetch.API, topics=asked, max_bytes=1000, session_id=session_id, session_epoch=epoch)
    beside.same(fetch.API, range(7, 14), topics=asked, max_bytes=1000, session_epoch=0)
    # A new session returns the requested partitions, whatever the id of the old one.
    beside.same(fetch.API, [version], topics=asked, max_bytes=1000, session_id=123, session_epoch=0)

    name, other = f"in-session-{version}", 25 - version
    beside.create(name, partitions=3)
    epoch = 0

    def go_on(*asked: dict[str, int], forgotten: tuple[int, ...] = ()) -> Answers:
        nonlocal epoch
        answers = beside.same(
            fetch.API,
            [version],
            topics=[topic(beside, name, *asked)] if asked else [],
            forgotten_topics_data=[topic(beside, name, *forgotten)] if forgotten else [],
            max_bytes=10_000,
            session_id=Its("session") if epoch else 0,
            session_epoch=epoch,
        )
        epoch += 1
        return answers

    beside.keep(
        "session", go_on(*(partition(index) for index in range(3))), lambda answer: answer["session_id"]
    )
    go_on()
    send(beside, name, batch("a", "b"), versions=[9])
    go_on()
    go_on()
    go_on(partition(0, 1))
    go_on(partition(0, 2))
    go_on()
    go_on(partition(0, 9))
    go_on()
    go_on(partition(0, 2), partition(7))
    go_on()
    go_on(forgotten=(7, 1))
    moved = [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]}]
    beside.same(delete_records.API, [2], topics=moved, timeout_ms=10_000)
    go_on()
    go_on()
    for asks, wrong in ((version, epoch - 1), (version, epoch + 1), (other, epoch), (other, epoch + 1)):
        its = Its("session")
        beside.same(fetch.API, [asks], topics=[], max_bytes=100, session_id=its, session_epoch=wrong)
    go_on(forgotten=(0, 2))
    go_on()


def test_a_topic_made_anew_under_a_fetch_session(beside: Beside) -> None:
    """With ids, its consumers get an error until they learn the new id; with names, they continue in the new topic."""
    name = "made-anew"

    def fetched(version: int, number: int, *, asks: bool = False) -> Answers:
        partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
        return beside.same(
            fetch.API,
            [version],
            topics=[topic(beside, name, partition)] if asks else [],
            max_bytes=10_000,
            session_id=Its(f"session {version}") if number else 0,
            session_epoch=number,
        )

    beside.create(name)
    send(beside, name, batch("a", "b"), versions=[9])
    for version in (12, 13):
        beside.keep(f"session {version}", fetched(version, 0, asks=True), lambda answer: answer["session_id"])
    beside.same(delete_topics.API, [6], topics=[{"name": name}], timeout_ms=10_000)
    beside.until(
        lambda answer: answer["topics"][0]["error_code"],
        metadata.API,
        12,
        topics=[{"name": name}],
        allow_auto_topic_creation=False,
    )
    fetched(13, 1)
    fetched(13, 2)
    beside.create(name)
    send(beside, name, batch("c", "d", "e"), versions=[9])
    fetched(13, 3)
    fetched(13, 4, asks=True)
    fetched(12, 1)


def test_offsets_of_times(beside: Beside) -> None:
    times = (
        -1,
        -2,
        -3,
        0,
        T0 - 1,
        T0,
        T0 + 1,
        T0 + 10,
        T0 + 15,
        T0 + 35,
        T0 + 99,
        T0 + 100,
        T0 + 101,
        T0 + 10**6,
    )
    offsets(beside, "sought-empty", *times)
    for each in (
        records_at(T0, T0 + 10, T0 + 5),
        records_at(T0 + 20, T0 + 40, T0 + 30, compression=Compression.GZIP),
        records_at(T0 + 100, T0 + 100, T0 + 50),
        records_at(T0 + 60, T0 + 70),
    ):
        send(beside, "sought", each, versions=[9])
        offsets(beside, "sought", *times)
    time.sleep(0.01)  # so that the last batch alone has the largest time of the brokers' own clocks
    send(beside, "stamped", records_at(T0), versions=[9])
    for name in ("stamped", "gzipped", "compacted"):
        offsets(beside, name, *times)


def test_offsets_that_are_refused(beside: Beside) -> None:
    for name, partition in (("no-such", 0), ("sought", 7), ("sought", -1), ("", 0), ("a/b", 0)):
        offsets(beside, name, -1, 0, partition=partition)
    for timestamp in (-4, -5, -6, -7, -100):
        offsets(beside, "sought", timestamp)
    for epoch in (0, 1, 9, -2):
        offsets(beside, "sought", -1, -2, T0, -3, epoch=epoch)
    offsets(beside, "sought", -1, -2, T0, isolation_level=1)
    asked = [{"partition_index": index, "timestamp": stamp} for index, stamp in ((0, -1), (0, -2), (1, -1))]
    beside.same(list_offsets.API, replica_id=-1, topics=[{"name": "sought", "partitions": asked}])
    beside.same(list_offsets.API, replica_id=-1, topics=[])
    offsets_of_replica = [{"name": "sought", "partitions": asked[:1]}]
    for replica in (-2, 1, 5):
        beside.same(list_offsets.API, replica_id=replica, topics=offsets_of_replica)


def test_ends_of_epochs(beside: Beside) -> None:
    def ask(name: str, epoch: int, current: int = -1, partition: int = 0) -> None:
        asked = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}
        topics = [{"topic": name, "partitions": [asked]}]
        beside.same(offset_for_leader_epoch.API, replica_id=-1, topics=topics)

    for epoch in (0, 1, -1):
        ask("epochs", epoch)
    send(beside, "epochs", GOOD, versions=[9])
    for epoch in (0, 1, 5, -1):
        for current in (-1, 0, 1, -2):
            ask("epochs", epoch, current)
    ask("no-such", 0)
    ask("", 0)
    ask("epochs", 0, partition=9)


def test_producer_ids(beside: Beside) -> None:
    beside.until(lambda answer: not answer["error_code"], init_producer_id.API, 4, transactional_id=None)
    beside.same(init_producer_id.API, transactional_id=None, transaction_timeout_ms=1000)
    beside.same(init_producer_id.API, transactional_id=None, transaction_timeout_ms=0)
    beside.same(init_producer_id.API, transactional_id="", transaction_timeout_ms=1000)
    for producer_id, epoch in ((5, -1), (-1, 5), (-2, -1), (5, 3)):
        beside.same(
            init_producer_id.API,
            [3, 4],
            transactional_id=None,
            transaction_timeout_ms=1000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )


def test_idempotent_producers(beside: Beside) -> None:
    def one(sequence: int, *values: str, epoch: int = 0, producer: int = 4000) -> None:
        records = batch(*values or ("a",), producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        send(beside, "idempotent", records, versions=[4])  # later ones return the log start, see START

    one(0, "a", "b")
    one(0, "a", "b")
    one(0, "a")
    one(0, "a", "b", "c")
    one(1)
    one(3)
    one(2)
    one(2)
    one(2, "a", "b")
    for sequence in range(3, 9):
        one(sequence)
    one(0, "a", "b")
    one(3)
    one(4)
    one(9, epoch=1)
    one(0, epoch=1)
    one(9, epoch=0)
    one(0, epoch=0)
    one(1, epoch=3)
    one(0, epoch=3)
    one(5, producer=4001)
    one(0, producer=4001)
    one(6, producer=4001)
    one(2**31 - 1, producer=4002)
    one(0, producer=4002)
    one(2**31 - 2, "a", "b", "c", producer=4003)
    one(1, producer=4003)
    one(7, producer=4004, epoch=9)
    one(8, producer=4004, epoch=8)
    read(beside, "idempotent", 0, versions=[12])


@pytest.mark.parametrize("partitions", [1, 3])
def test_min_insync_replicas_above_the_number_of_replicas(beside: Beside, partitions: int) -> None:
    """The effective minimum is the lesser of the two, so acks=all is acknowledged."""
    name = f"more-than-there-are-{partitions}"
    beside.create(name, partitions=partitions, min_insync_replicas="7")
    for index in range(partitions):
        asked = [{"index": index, "records": GOOD}]
        answers = beside.same(
            produce.API, [9], acks=-1, timeout_ms=1000, topic_data=[{"name": name, "partition_data": asked}]
        )
        (part,) = answers.ours["responses"][0]["partition_responses"]
        assert (part["error_code"], part["base_offset"]) == (0, 0)
    beside.same(metadata.API, [12], topics=[{"name": name}])


def test_recreated_topic_takes_any_first_sequence(beside: Beside) -> None:
    """The repetition of a batch that was in flight before that one is then out of order, for ever."""
    name = "recreated-for-a-producer"

    def one(sequence: int, epoch: int = 0) -> int:
        records = batch("a", producer_id=4100, producer_epoch=epoch, base_sequence=sequence)
        data = [{"name": name, "partition_data": [{"index": 0, "records": records}]}]
        answers = beside.same(produce.API, [4], acks=-1, timeout_ms=10_000, topic_data=data)
        return answers.ours["responses"][0]["partition_responses"][0]["error_code"]

    beside.create(name)
    assert [one(sequence) for sequence in (0, 1, 2, 2, 4)] == [0, 0, 0, 0, 45]
    beside.same(delete_topics.API, [5], topic_names=[name], timeout_ms=10_000)
    beside.until(
        lambda answer: answer["topics"][0]["error_code"] == 3,
        metadata.API,
        12,
        topics=[{"name": name}],
        allow_auto_topic_creation=False,
    )
    beside.create(name)
    assert [one(sequence) for sequence in (7, 6, 5, 6, 8, 6, 7)] == [0, 45, 45, 45, 0, 45, 0]
    assert [one(sequence, epoch=1) for sequence in (6, 0, 6)] == [45, 0, 45]
    read(beside, name, 0, versions=[12])
