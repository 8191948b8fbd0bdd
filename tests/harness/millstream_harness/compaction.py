"""Logs of keys and values, and one pass of compaction over them."""

from __future__ import annotations

from millstream_broker.log.compaction import Allowance, Compaction
from millstream_broker.log.log import Log
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records
from millstream_kafka.compression import Compression

NOW = 1_700_000_000_000


def put(
    log: Log,
    *pairs: tuple[str, str | None],
    codec: Compression = Compression.NONE,
    timestamp: int = NOW,
) -> None:
    """Append one batch."""
    records = [
        Record(key.encode(), None if value is None else value.encode(), timestamp) for key, value in pairs
    ]
    log.append(build_batch(records, compression=codec), leader_epoch=0, now_ms=NOW)


def put_closed(log: Log, *pairs: tuple[str, str | None], timestamp: int = NOW) -> None:
    """Append one batch, and end its segment."""
    put(log, *pairs, timestamp=timestamp)
    log.roll(now_ms=NOW)


def pass_over(log: Log, *, end: int | None = None, now: int = NOW, max_keys: int = 1000) -> Compaction:
    """A pass that has not begun. ``end``: by default the start of the active segment."""
    end = log.segments.active.base_offset if end is None else end
    return Compaction(log, end, now_ms=now, allowance=Allowance(max_keys=max_keys))


def run(compaction: Compaction) -> None:
    while compaction.work():
        assert compaction.commit()
    compaction.finish()
    compaction.log.remove_deleted_files()


def compact(log: Log, *, end: int | None = None, now: int = NOW, max_keys: int = 1000) -> None:
    run(pass_over(log, end=end, now=now, max_keys=max_keys))


def stored(log: Log) -> list[Record]:
    """All records by :meth:`Log.read`, compared with those by iteration."""
    found: list[Record] = []
    offset = log.log_start_offset
    while (part := log.read(offset, 400, upper=log.log_end_offset, min_one=True)) is not None:
        data = part.read()
        for position, header in iter_batches(data):
            found += read_records(data[position : position + header.size])
            offset = header.next_offset
    assert found == [
        record for batch in log.batches_from(log.log_start_offset) for record in read_records(batch)
    ]
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    return found


def values(log: Log) -> list[tuple[int, str, str | None]]:
    """Offset, key and value of each record."""
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for record in stored(log)
    ]
