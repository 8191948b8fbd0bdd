"""Small Produce requests that follow one another in the receive buffer, appended together.

A producer that sends each record by itself leaves many requests of one shape (`produce_shortcut`) in the socket. Alone,
each would cost a walk through the layers and a write. A run of them is one append to the log instead:
`Partition.append_run`. Each request still gets the response that it would get alone. So a run has one batch a request,
whole within it, or two requests could hold the halves of a batch; and if the log does not take all of them, it takes
none, and they are handled one by one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from millstream_kafka.batch import HEADER_SIZE, LOG_OVERHEAD
from millstream_kafka.protocol import produce

from .produce_shortcut import Known, ProduceShortcut, records_of

LARGEST = 4096
"""Bytes of the largest request in a run. Larger ones gain little, because their batches are copied."""
MOST = 128
"""Requests in a run, so that it takes about as long as one request of 1 MB."""

_FRAME = struct.Struct(">ihhi")
"""Size, API key, version, correlation id."""
_SIZE_BYTES = 4
_BATCH = struct.Struct(">8xi11xi")
"""Batch length, last offset delta."""


class Run(NamedTuple):
    """Requests for one partition that differ in their records only."""

    known: Known
    correlation_ids: list[int]
    batches: list[memoryview]
    """The batch of each request: views of the receive buffer, which must not be kept."""
    counts: list[int]
    """The offsets that each batch takes, by its header, which is not validated yet."""
    end: int
    """Position after the last request."""


def find_run(
    shortcut: ProduceShortcut, view: memoryview, start: int, end: int, most: int = MOST
) -> Run | None:
    """The run of at most `most` requests from `start` on; None if there are not two such requests before `end`.

    The first frame is whole.
    """
    if end - start < _FRAME.size:  # a short token before authentication
        return None
    size, key, version, _ = _FRAME.unpack_from(view, start)
    frame, second = start + _SIZE_BYTES, start + _SIZE_BYTES + size + _SIZE_BYTES
    if key != produce.API.key or (found := shortcut.shape_of(view[frame : frame + size], version)) is None:
        return None
    shape, known, at = found
    flexible, head = known.flexible, at - len(shape)
    if view[second + head : second + at] != shape:  # usually it is for another partition
        return None
    ids: list[int] = []
    batches: list[memoryview] = []
    counts: list[int] = []
    while end - start >= _FRAME.size and len(ids) < most:
        size, its_key, its_version, correlation_id = _FRAME.unpack_from(view, start)
        begin = start + _SIZE_BYTES
        next_start = begin + size
        if its_key != key or its_version != version or not at < size <= LARGEST or next_start > end:
            break
        if view[begin + head : begin + at] != shape:
            break
        batch = records_of(view[begin:next_start], at, flexible)
        if batch is None or len(batch) < HEADER_SIZE:
            break
        length, last_offset_delta = _BATCH.unpack_from(batch)
        if length + LOG_OVERHEAD != len(batch):
            break
        ids.append(correlation_id)
        batches.append(batch)
        counts.append(last_offset_delta + 1)
        start = next_start
    return Run(known, ids, batches, counts, start) if len(ids) > 1 else None
