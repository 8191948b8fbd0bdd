"""A led partition: changes of its high watermark, notifications, and a log that cannot be written.

Broker 1 leads; broker 2 follows. Nothing happens to it but what a test does.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic_ns

import pytest

from millstream_broker.config.config import BrokerConfig, TopicConfig
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.config import LogConfig
from millstream_broker.log.errors import DeletedError
from millstream_broker.log.files import OpenFile
from millstream_broker.log.log import Log
from millstream_broker.log.segment import Segment
from millstream_broker.replication.append_queue import AppendQueue
from millstream_broker.replication.isr import Isr
from millstream_broker.replication.partition import AT_ONCE_BYTES, Partition, is_cheap, now_ms
from millstream_broker.replication.purgatory import DelayedProduce
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_broker.topic_rules.mirrored_topics import EPOCHS_ABOVE
from millstream_harness.held_thread import HeldThread
from millstream_harness.replica import NOW_MS, THEM, US, Waiter, batch, led_by, open_log, topic
from millstream_kafka.batch import HEADER_SIZE, Record, build_batch
from millstream_kafka.compression import Compression
from millstream_kafka.mirror_source import KEY, MirrorSource
from millstream_kafka.protocol.errors import ApiError, ErrorCode

SIZE = len(batch("a"))
EPOCH = 3


def isr_of(*in_sync: int) -> Isr:
    return Isr(
        US,
        led_by(US, epoch=EPOCH, isr=in_sync),
        log_end=0,
        high_watermark=0,
        min_isr=1,
        max_lag_ms=600_000,
        alive=(US, THEM),
        now_ms=now_ms(),
    )


class Led:
    """Partition t-0 in leader epoch 3; a consumer and a follower wait for records."""

    def __init__(self, folder: Path, *in_sync: int, **config: str) -> None:
        """`in_sync` is the ISR; without it, broker 1 is the sole replica."""
        overrides = {key.replace("_", "."): value for key, value in config.items()}
        self.unwritable = 0
        record = led_by(US, US, epoch=EPOCH) if not in_sync else led_by(US, epoch=EPOCH, isr=in_sync)
        self.partition = Partition(
            topic("t", record),
            0,
            open_log(folder / "t-0"),
            TopicConfig(BrokerConfig(), overrides),
            AppendQueue(RequestMemory(1 << 20)),
            isr_of(*in_sync) if in_sync else None,
            self._cannot_be_written,
        )
        self.consumer, self.follower = Waiter(), Waiter()
        self.partition.waiters.add(self.consumer)
        self.partition.followers.add(self.follower)

    def _cannot_be_written(self) -> None:
        self.unwritable += 1

    def append(self, *values: str, acks: int = 1) -> AppendInfo | DelayedProduce:
        return self.partition.append(batch(*values), NOW_MS, acks=acks, timeout_ms=60_000)

    def fetched(self, offset: int, log_start: int = 0) -> None:
        """The follower has fetched up to here."""
        self.partition.fetched(THEM, offset, log_start)

    def told(self) -> tuple[list[int | str], list[int | str]]:
        """Notifications of the consumer and the follower since the last call."""
        found = self.consumer.told, self.follower.told
        self.consumer.told, self.follower.told = [], []
        return found


def code_of(append: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        append()
    return error.value.code


# Notifications


def test_followers_are_told_what_is_appended_and_consumers_what_is_safe(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM)
    led.append("a")
    led.append("a")
    assert led.told() == ([], [SIZE, SIZE])
    led.fetched(0)
    assert led.told() == ([], [])
    led.fetched(1)
    assert led.told() == ([2 * SIZE], ["committed"])
    led.fetched(2)
    assert led.told() == ([1], ["committed"]), "they know of its bytes"
    led.append("a")
    led.fetched(3)
    assert led.told() == ([SIZE], [SIZE, "committed"])
    led.fetched(3)
    assert led.told() == ([], [])


def test_what_changes_nothing_is_told_to_nobody(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.append("a")
    led.told()
    led.partition.configure(TopicConfig(BrokerConfig(), {}))
    assert led.told() == ([], [])


def test_a_repetition_is_no_news(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM)
    for _ in range(2):
        led.partition.append(batch("a", producer_id=7), NOW_MS, acks=1)
    assert led.told() == ([], [SIZE])
    led.fetched(1)
    assert led.told() == ([SIZE], ["committed"])


def test_all_ask_again_when_the_partition_goes(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM)
    led.partition.release(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert led.told() == ([0], [0])
    assert code_of(lambda: led.append("a")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert led.partition.log.log_end_offset == 0


def test_a_leader_begins_at_the_high_watermark_that_it_knows(tmp_path: Path) -> None:
    isr = isr_of(US, THEM)
    isr.high_watermark = 2
    log = open_log(tmp_path / "t-0", batch("a", "b"))
    config = TopicConfig(BrokerConfig(), {"flush.messages": "1"})
    partition = Partition(topic("t", isr.record), 0, log, config, AppendQueue(RequestMemory(1 << 20)), isr)
    assert partition.high_watermark == 2
    assert partition._flushing is None, "they are safe already"


def test_a_leader_in_a_new_epoch_has_everybody_ask_again(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM)
    led.partition.lead(replace(led.partition.record, isr=(US,)))
    assert led.told() == ([], []), "the same leadership"
    led.partition.lead(replace(led.partition.record, leader_epoch=EPOCH + 1))
    assert led.told() == ([0], [0])


def test_a_sole_replica_that_gets_company_waits_for_it(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.append("a")
    assert led.told() == ([SIZE], [])
    company = isr_of(US, THEM)
    led.partition.lead(company.record, company)
    led.append("a")
    assert (led.partition.high_watermark, led.told()) == (1, ([], [SIZE]))
    led.fetched(2)
    assert (led.partition.high_watermark, led.told()) == (2, ([SIZE], ["committed"]))


# Acknowledgements


async def test_acknowledgements_as_safe_as_asked_for(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM, min_insync_replicas="2")
    assert isinstance(led.append("a", acks=1), AppendInfo)
    waiting = led.append("a", acks=-1)
    assert isinstance(waiting, DelayedProduce)
    led.fetched(2)
    await waiting


RUN = (batch("a"), batch("b", "c"), batch("d"))


def append_run(led: Led, acks: int = -1) -> list[AppendInfo | DelayedProduce] | None:
    """Append the batches of three requests, which hold one, two and one record."""
    return led.partition.append_run(RUN, [1, 2, 1], NOW_MS, acks=acks, timeout_ms=60_000)


async def test_each_request_of_a_run_waits_for_its_own_records(tmp_path: Path) -> None:
    """Between them, the log may be cut: then some are in no log, and those before them are safe."""
    led = Led(tmp_path, US, THEM)
    requests = append_run(led)
    assert requests is not None
    assert led.told() == ([], [SIZE + len(RUN[1]) + SIZE]), "one write, one notification"
    led.fetched(3)
    purgatory = led.partition.step_down()
    purgatory.truncated(3)
    found = []
    for one in requests:
        assert isinstance(one, DelayedProduce)
        assert one.is_done
        assert one.info is not None
        found.append((one.info.first_offset, one.info.last_offset, one.error and one.error.code))
    assert found == [(0, 0, None), (1, 2, None), (3, 3, ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_a_run_whose_records_are_safe_at_once(tmp_path: Path) -> None:
    assert append_run(Led(tmp_path)) == [
        AppendInfo(0, 0, -1, 0),
        AppendInfo(1, 2, -1, 0),
        AppendInfo(3, 3, -1, 0),
    ]


SOURCE = MirrorSource("cluster", uuid.UUID(int=7))


def mirrored(folder: Path, *in_sync: int, **config: str) -> Led:
    """A mirror's replica, led in the first epoch in which it may append records of epoch 1."""
    led = Led(folder, *in_sync, **{KEY: str(SOURCE)}, **config)
    led.partition.record = replace(led.partition.record, leader_epoch=1 + EPOCHS_ABOVE)
    return led


def append_mirrored(led: Led, epoch: int = 1) -> DelayedProduce | None:
    return led.partition.append_mirrored(str(SOURCE), batch("a", epoch=epoch), 0, 0, NOW_MS, 60_000)


async def test_records_of_a_mirror_wait_for_all_replicas(tmp_path: Path) -> None:
    led = mirrored(tmp_path, US, THEM)
    waiting = append_mirrored(led)
    assert waiting is not None
    assert not waiting.is_done
    led.fetched(1)
    assert waiting.is_done
    assert append_mirrored(mirrored(tmp_path / "sole")) is None


def test_a_mirror_follows_the_start_of_its_source(tmp_path: Path) -> None:
    led = mirrored(tmp_path)
    for from_offset, log_start, told in (
        (0, 0, ([], [])),
        (0, 10, ([0, 0], [0])),
        (10, 10, ([], [])),
    ):
        led.partition.append_mirrored(str(SOURCE), None, from_offset, log_start, NOW_MS, 60_000)
        assert led.told() == told
        assert led.partition.log.log_end_offset == log_start


def test_records_of_a_mirror_need_the_minimum_isr(tmp_path: Path) -> None:
    led = mirrored(tmp_path, US, min_insync_replicas="2")
    assert code_of(lambda: append_mirrored(led)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.partition.log.log_end_offset == 0


def test_records_of_a_mirror_need_a_leader_epoch_far_above_theirs(tmp_path: Path) -> None:
    led = mirrored(tmp_path)
    needed: list[tuple[int, int]] = []
    led.partition._raise_epoch = lambda partition, above, epoch: needed.append((above, epoch))
    assert code_of(lambda: append_mirrored(led, epoch=2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    ((above, epoch),) = needed
    assert above == 1 + EPOCHS_ABOVE, "the next one suffices"
    assert epoch >= 2 + EPOCHS_ABOVE


async def test_a_run_of_one_request_waits_for_the_replicas(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM)
    requests = led.partition.append_run(RUN[:1], [1], NOW_MS, acks=-1, timeout_ms=60_000)
    assert requests is not None
    (waiting,) = requests
    assert isinstance(waiting, DelayedProduce)
    assert not waiting.is_done
    led.fetched(1)
    assert waiting.is_done


def test_a_run_that_is_not_appended_changes_nothing(tmp_path: Path) -> None:
    few = Led(tmp_path / "few", US, min_insync_replicas="2")
    assert append_run(few) is None
    assert append_run(few, acks=1) is not None
    read = Led(tmp_path / "read", cleanup_policy="compact")
    read.partition.log.config = LogConfig(cleanup_policy="compact")
    read.partition.configure(TopicConfig(BrokerConfig(), {}))
    assert append_run(read) is None
    damaged = Led(tmp_path / "damaged")
    last = bytearray(RUN[2])
    last[-1] ^= 1
    run = [*RUN[:2], memoryview(last)]
    assert damaged.partition.append_run(run, [1, 2, 1], NOW_MS, acks=1, timeout_ms=None) is None
    gone = Led(tmp_path / "gone")
    gone.partition.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert append_run(gone) is None
    for led in (read, damaged, gone):
        assert (led.partition.log.log_end_offset, led.partition.log.size) == (0, 0)
        assert led.told()[1] in ([], [0])


def test_after_a_torn_write_nobody_says_that_no_log_has_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes two and a half batches of a run, and cannot remove them; the next start finds the two."""
    led = Led(tmp_path, US, THEM)
    pwrite = OpenFile.pwrite

    def torn(this: OpenFile, data: bytes | bytearray | memoryview, position: int) -> None:
        pwrite(this, data[: SIZE + len(RUN[1]) + SIZE // 2], position)
        raise OSError(errno.ENOSPC, "No space left on device", this.path)

    def fail(this: OpenFile, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error", this.path)

    monkeypatch.setattr(OpenFile, "pwrite", torn)
    monkeypatch.setattr(OpenFile, "truncate", fail)
    assert append_run(led) is None
    for values in (("a",), ("b", "c"), ("d",), ("later",)):
        assert code_of(partial(led.append, *values)) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert led.unwritable, "another replica leads"
    monkeypatch.undo()
    assert Log.open(tmp_path / "t-0", LogConfig(), clean=False).log_end_offset == 3


def test_a_run_behind_a_refused_batch_is_left_to_the_check_of_each(tmp_path: Path) -> None:
    """Only the first batch of an append is compared with the producer's refused ones."""
    led = Led(tmp_path, US, min_insync_replicas="2")

    def sent(sequence: int) -> memoryview:
        records = [Record(b"k", b"v", NOW_MS)]
        return memoryview(
            bytearray(build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence))
        )

    assert code_of(lambda: led.partition.append(sent(0), NOW_MS)) is ErrorCode.NOT_ENOUGH_REPLICAS
    run = [batch("a"), sent(1)]
    assert led.partition.append_run(run, [1, 1], NOW_MS, acks=1, timeout_ms=None) is None


def test_too_few_replicas_in_sync(tmp_path: Path) -> None:
    led = Led(tmp_path, US, min_insync_replicas="2")
    assert code_of(lambda: led.append("a", acks=-1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert isinstance(led.append("a", acks=1), AppendInfo)
    assert led.partition.log.log_end_offset == 1


async def test_who_wants_no_acknowledgement_waits_for_nobody(tmp_path: Path) -> None:
    for number, led in enumerate((Led(tmp_path / "1", US, THEM), Led(tmp_path / "2", flush_messages="1"))):
        assert isinstance(led.append("a", acks=0), AppendInfo)
        found = led.append("b", acks=-1)
        assert isinstance(found, DelayedProduce), number


async def test_a_flush_covers_what_was_appended_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, flush_messages="1")
    gate = HeldThread(monkeypatch, Segment, "sync")
    first = led.append("a")
    await gate.reached()
    second = led.append("b")
    gate.open()
    assert isinstance(first, DelayedProduce)
    await first
    assert led.partition.high_watermark == 1
    assert isinstance(second, DelayedProduce)
    await second
    assert led.partition.high_watermark == 2
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(gate.threads) == 2, "nothing is left to be flushed"
    assert led.partition._flushing is None


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_flush_that_fails_is_said_unless_the_log_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, deleted: bool
) -> None:
    def fail(this: Log) -> int:
        if deleted:
            this.offline = DeletedError()
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "Input/output error")

    monkeypatch.setattr(Log, "flush", fail)
    waiting = Led(tmp_path, flush_messages="1").append("a")
    assert isinstance(waiting, DelayedProduce)
    with pytest.raises(ApiError):
        await waiting
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == ([] if deleted else ["t-0: Input/output error"])


# A log that cannot be written


def break_log(led: Led, monkeypatch: pytest.MonkeyPatch, *, offline: bool = False) -> None:
    def fail(this: Log, *_: object, **__: object) -> AppendInfo:
        if offline:
            this.offline = OSError(5, "Input/output error")
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "Input/output error")

    monkeypatch.setattr(Log, "append", fail)


@pytest.mark.parametrize(
    ("in_sync", "min_isr", "moves"),
    [((US, THEM), "1", True), ((US, THEM), "2", False), ((US,), "1", False), ((), "1", False)],
)
def test_leadership_moves_where_another_replica_can_take_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_sync: tuple[int, ...], min_isr: str, moves: bool
) -> None:
    led = Led(tmp_path, *in_sync, min_insync_replicas=min_isr)
    break_log(led, monkeypatch)
    assert code_of(lambda: led.append("a")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert led.unwritable == moves
    assert led.told() == ([], [])


def test_a_log_that_is_offline_has_everybody_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, US, THEM)
    break_log(led, monkeypatch, offline=True)
    assert code_of(lambda: led.append("a")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert led.told() == ([0], [0])


@pytest.mark.parametrize(
    ("error", "why"), [(OSError(5, "Input/output error"), "Input/output error"), (OSError("odd"), "odd")]
)
def test_a_replica_whose_log_is_offline_says_why(tmp_path: Path, error: OSError, why: str) -> None:
    led = Led(tmp_path)
    led.partition.check_online()
    led.partition.log.offline = error
    with pytest.raises(ApiError, match=f"t-0 is offline: {why}$"):
        led.partition.check_online()


def test_records_that_are_refused_move_no_leadership(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM)
    damaged = batch("a")
    damaged[-1] ^= 0xFF
    assert code_of(lambda: led.partition.append(damaged, NOW_MS)) is ErrorCode.CORRUPT_MESSAGE
    assert (led.unwritable, led.told()) == (0, ([], []))


# DeleteRecords


async def test_records_are_deleted_when_no_replica_has_them(tmp_path: Path) -> None:
    led = Led(tmp_path, US, THEM)
    for _ in range(3):
        led.append("a")
    led.fetched(3)
    led.told()
    assert led.partition.delete_records_before(0, 60_000) is None, "there is nothing before"
    assert led.told() == (["committed"], [])
    first, second = (led.partition.delete_records_before(offset, 60_000) for offset in (1, 2))
    assert first is not None
    assert second is not None
    assert led.told() == (["committed"] * 2, [0, 0])
    led.fetched(3, log_start=0)
    assert (first.is_done, second.is_done) == (False, False)
    led.fetched(3, log_start=1)
    assert (first.is_done, second.is_done) == (True, False)
    led.fetched(3, log_start=2)
    assert second.is_done
    for offset in (-1, 4):
        with pytest.raises(ApiError, match="OFFSET_OUT_OF_RANGE"):
            led.partition.delete_records_before(offset, 60_000)


def test_a_sole_replica_deletes_records_at_once(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.append("a", "b")
    assert led.partition.delete_records_before(2, 60_000) is None
    assert led.partition.log.log_start_offset == 2


# Immediate appends


def test_the_clock_counts_whole_milliseconds() -> None:
    before, now, after = monotonic_ns(), now_ms(), monotonic_ns()
    assert isinstance(now, int)
    assert before // 1_000_000 <= now <= after // 1_000_000


def sized(size: int, codec: Compression = Compression.NONE) -> memoryview:
    """A batch of this many bytes."""
    value = bytes(size - len(build_batch([Record(None, b"", NOW_MS)])))
    data = bytearray(build_batch([Record(None, value, NOW_MS)]))
    while len(data) > size:  # a longer value has a longer length field
        value = value[:-1]
        data = bytearray(build_batch([Record(None, value, NOW_MS)]))
    assert len(data) == size
    data[22] |= codec
    return memoryview(data)


def test_little_that_is_not_compressed_is_read_on_the_loop() -> None:
    assert is_cheap(sized(AT_ONCE_BYTES))
    assert not is_cheap(sized(AT_ONCE_BYTES + 1))
    assert not is_cheap(sized(100, Compression.LZ4))
    empty = memoryview(bytearray(HEADER_SIZE))
    empty[22] = Compression.LZ4
    assert not is_cheap(empty)
    assert is_cheap(empty[:-1]), "it is refused by its length"
    assert is_cheap(empty[:3])
