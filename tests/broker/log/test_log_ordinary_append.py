"""The short path of an append beside the long one: equal results, logs, indexes, producers and errors."""

from __future__ import annotations

import errno
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream_broker.log.log as log_module
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import OpenFile
from millstream_broker.log.index import SparseIndex
from millstream_broker.log.log import Log
from millstream_broker.log.ordinary_append import append_ordinary
from millstream_kafka.batch import CRC_START, INT32_MAX, Record, build_batch
from millstream_kafka.compression import Compression
from millstream_kafka.protocol.errors import ApiError

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000

CONFIGS = [
    LogConfig(),
    LogConfig(),
    LogConfig(segment_bytes=1500, index_interval_bytes=100),
    LogConfig(index_size_max_bytes=60, index_interval_bytes=0),
    LogConfig(segment_ms=50),
    LogConfig(max_message_bytes=300),
    LogConfig(max_decompressed_message_bytes=1000),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(message_timestamp_before_max_ms=1000),
    LogConfig(cleanup_policy="compact"),
    LogConfig(compression_type="gzip"),
]

LAYOUT = {
    "base": (0, ">q"),
    "length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "delta": (23, ">i"),
    "count": (57, ">i"),
    "epoch": (51, ">h"),
    "crc": (17, ">i"),
}

ORDINARY: dict[str, Any] = {
    "op": "append",
    "values": [10, 10],
    "key": b"k",
    "time": NOW,
    "codec": Compression.NONE,
    "producer": -1,
    "producer_epoch": 0,
    "sequence": "next",
    "repeat": 1,
    "change": None,
    "seal": True,
    "cut": 0,
    "readonly": False,
    "leader_epoch": "latest",
    "disk": "",
}
DEVIATIONS: dict[str, list[Any]] = {
    "values": [[0], [200] * 3, [10] * 4, [1400]],
    "key": [None],
    "time": [-2, -1, 0, NOW - 2000, NOW + 20, NOW + 60, NOW + HOUR_MS + 1],
    "codec": [Compression.GZIP, Compression.ZSTD],
    "producer_epoch": [1],
    "sequence": ["again", "gap", INT32_MAX - 1],
    "repeat": [2],
    "cut": [1, 40, 80],
    "readonly": [True],
    "leader_epoch": [0, 1, 3],
    "disk": ["full", "torn"],
}
CHANGED = [-1, 0, 1, 3, 5, 8, 9, 16, 32, 100, INT32_MAX]
changes = st.tuples(st.sampled_from(sorted(LAYOUT)), st.sampled_from(CHANGED))
deviations = st.one_of(
    *(st.fixed_dictionaries({name: st.sampled_from(values)}) for name, values in DEVIATIONS.items()),
    st.fixed_dictionaries({"change": changes, "seal": st.booleans()}),
)
others = st.one_of(
    st.fixed_dictionaries({"op": st.just("truncate"), "back": st.integers(0, 6)}),
    st.fixed_dictionaries({"op": st.just("lead"), "epoch": st.integers(0, 4)}),
    st.fixed_dictionaries({"op": st.just("freeze")}),
    st.fixed_dictionaries({"op": st.just("roll")}),
    st.fixed_dictionaries({"op": st.just("busy"), "is_so": st.booleans()}),
    st.fixed_dictionaries({"op": st.just("reconfigure"), "config": st.integers(0, len(CONFIGS) - 1)}),
)


@st.composite
def lives(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Steps of a log: mostly ordinary batches, so that what follows has an ordinary past."""
    taken: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 6))):
        producer = draw(st.sampled_from([-1, 1]))
        taken += [ORDINARY | {"producer": producer}] * draw(st.integers(0, 3))
        if draw(st.booleans()):
            taken.append(ORDINARY | {"producer": draw(st.sampled_from([producer, 2]))} | draw(deviations))
        else:
            taken.append(draw(others))
    return taken


def bytes_of(step: dict[str, Any], sequences: dict[tuple[int, int], list[tuple[int, int]]]) -> bytearray:
    """The batches of a step; `sequences` are those sent so far, by producer and epoch."""
    data = bytearray()
    for _ in range(step["repeat"]):
        sent = sequences.setdefault((step["producer"], step["producer_epoch"]), [])
        count, sequence = len(step["values"]), step["sequence"]
        if sequence == "again" and sent:
            sequence, count = sent[-1]
        elif not isinstance(sequence, int):
            sequence = (sum(sent[-1]) if sent else 0) + (7 if sequence == "gap" else 0)
        sent.append((sequence & INT32_MAX, count))
        values = (step["values"] * count)[:count]
        batch = bytearray(
            build_batch(
                [Record(step["key"], bytes(size), step["time"]) for size in values],
                producer_id=step["producer"],
                producer_epoch=step["producer_epoch"] if step["producer"] >= 0 else -1,
                base_sequence=sequence & INT32_MAX if step["producer"] >= 0 else -1,
                compression=step["codec"],
            )
        )
        if step["change"] is not None:
            name, value = step["change"]
            position, form = LAYOUT[name]
            bits = 8 * struct.calcsize(form)
            value = (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            struct.pack_into(form, batch, position, value)
            if step["seal"]:
                struct.pack_into(">I", batch, 17, crc32c(batch[CRC_START:]))
        data += batch
    return data[: len(data) - step["cut"]]


@contextmanager
def disk(fault: str) -> Iterator[None]:
    """A disk that is full after half of the write; `torn`: it cannot remove that half, either."""
    if not fault:
        yield
        return
    write = OpenFile.pwrite

    def pwrite(self: OpenFile, data: Any, position: int) -> None:
        if not self.path.endswith(".log"):
            return write(self, data, position)
        write(self, memoryview(data)[: len(data) // 2], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    def truncate(self: OpenFile, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with mock.patch.object(OpenFile, "pwrite", pwrite):
        if fault == "torn":
            with mock.patch.object(OpenFile, "truncate", truncate):
                yield
        else:
            yield


def take(log: Log, step: dict[str, Any], data: bytearray | None) -> object:
    """Do one step; what it returned or raised."""
    try:
        if step["op"] == "append":
            assert data is not None
            view = memoryview(bytes(data)) if step["readonly"] else memoryview(bytearray(data))
            epoch = max(log.epochs.latest, 0) if step["leader_epoch"] == "latest" else step["leader_epoch"]
            with disk(step["disk"]):
                return log.append(view, leader_epoch=epoch, now_ms=NOW)
        match step["op"]:
            case "truncate":
                log.truncate_to(max(log.log_end_offset - step["back"], log.log_start_offset), now_ms=NOW)
            case "lead":
                log.assign_leader_epoch(step["epoch"])
            case "freeze":
                log.producers.frozen()
            case "busy":
                log.truncating = step["is_so"]
            case "skip":
                log.log_end_offset = step["to"]
            case "roll":
                log.roll(now_ms=NOW)
            case "reconfigure":
                log.reconfigure(CONFIGS[step["config"]])
    except ApiError as error:
        return type(error), error.code, error.message.replace(str(log.directory), "LOG")
    return None


def entries_of(index: SparseIndex) -> list[tuple[int, int]]:
    return [index[position] for position in range(len(index))]


def state_of(log: Log) -> object:
    """Everything that another append, a reader or a restart depends on."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        type(log.offline),
        log.epochs.entries,
        log.producers.encode(),
        [
            (
                segment.base_offset,
                segment.size,
                segment.rolling_timestamp() if log.offline is None else None,
                segment._since_index,
                segment._entries,
                segment._max_timestamp,
                segment._max_timestamp_offset,
                segment._indexed_timestamp,
                entries_of(segment.offsets),
                entries_of(segment.times),
            )
            for segment in log.segments
        ],
        {path.name: path.read_bytes() for path in sorted(log.directory.iterdir()) if path.suffix == ".log"},
    )


@contextmanager
def two_logs(config: LogConfig) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that takes one step with each path and compares everything."""
    folder = Path(tempfile.mkdtemp())
    try:
        short, long = (
            Log.open(folder / name / "t-0", config, clean=True, now_ms=NOW) for name in ("short", "long")
        )
        sequences: dict[tuple[int, int], list[tuple[int, int]]] = {}

        def compare(step: dict[str, Any]) -> None:
            data = bytes_of(step, sequences) if step["op"] == "append" else None
            done = take(short, step, data)
            with mock.patch.object(log_module, "append_ordinary", return_value=None):
                assert take(long, step, data) == done
            assert state_of(long) == state_of(short)

        yield compare
    finally:
        shutil.rmtree(folder)


@settings(max_examples=200, deadline=None)
@given(config=st.sampled_from(CONFIGS), steps=lives())
def test_both_paths_leave_the_same_log(config: LogConfig, steps: list[dict[str, Any]]) -> None:
    with two_logs(config) as compare:
        for step in steps:
            compare(step)


SINGLE = [
    *({name: value} for name, values in DEVIATIONS.items() for value in values),
    *({"change": (name, value), "seal": True} for name in LAYOUT for value in [-1, 0, 3, 32, INT32_MAX]),
    {"change": ("crc", 1), "seal": False},
    {"values": [0] * 400, "codec": Compression.ZSTD},
]


@pytest.mark.parametrize("producer", [-1, 1])
@pytest.mark.parametrize("config", range(len(CONFIGS)))
def test_one_difference_from_an_ordinary_batch_is_treated_alike(config: int, producer: int) -> None:
    ordinary = ORDINARY | {"producer": producer}
    for deviation in SINGLE:
        with two_logs(CONFIGS[config]) as compare:
            for step in [ordinary, ordinary, ordinary | deviation, ordinary]:
                compare(step)


def test_sequences_that_wrap_are_treated_alike() -> None:
    ordinary = ORDINARY | {"producer": 1}
    with two_logs(LogConfig()) as compare:
        for step in [ordinary | {"sequence": INT32_MAX - 2}, *[ordinary] * 8]:
            compare(step)


@pytest.mark.parametrize("time", [-1, 0, NOW])
def test_batches_after_one_without_a_time_are_treated_alike(time: int) -> None:
    with two_logs(LogConfig(segment_ms=50)) as compare:
        for step in [ORDINARY | {"time": time}, ORDINARY, ORDINARY]:
            compare(step)


def test_offsets_beyond_a_segment_are_treated_alike() -> None:
    with two_logs(LogConfig()) as compare:
        for step in [ORDINARY, {"op": "skip", "to": INT32_MAX - 1}, ORDINARY, ORDINARY, ORDINARY]:
            compare(step)


def batch(**fields: Any) -> memoryview:
    return memoryview(bytearray(build_batch([Record(None, b"value", NOW)] * 2, **fields)))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log whose next batch may be ordinary."""
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    log.append(batch(), leader_epoch=3, now_ms=NOW)
    log.append(batch(producer_id=1, producer_epoch=0, base_sequence=0), leader_epoch=3, now_ms=NOW)
    return log


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"compression": Compression.LZ4},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": 2},
    ],
    ids=["plain", "compressed", "idempotent"],
)
def test_an_ordinary_batch_takes_the_short_path(log: Log, fields: dict[str, Any]) -> None:
    assert append_ordinary(log, batch(**fields), 3, NOW) == AppendInfo(4, 5, -1, 0)
    assert log.log_end_offset == 6


@pytest.mark.parametrize(
    ("fields", "leader_epoch"),
    [
        ({}, 4),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}, 3),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": 3}, 3),
        ({"producer_id": 1, "producer_epoch": 1, "base_sequence": 0}, 3),
        ({"producer_id": 2, "producer_epoch": 0, "base_sequence": 0}, 3),
        ({"transactional": True, "producer_id": 1, "producer_epoch": 0, "base_sequence": 2}, 3),
        ({"control": True}, 3),
    ],
    ids=["epoch", "again", "gap", "new-epoch", "new-producer", "transactional", "control"],
)
def test_any_other_batch_takes_the_long_path(log: Log, fields: dict[str, Any], leader_epoch: int) -> None:
    data = batch(**fields)
    before = bytes(data)
    assert append_ordinary(log, data, leader_epoch, NOW) is None
    assert bytes(data) == before
    assert log.log_end_offset == 4
