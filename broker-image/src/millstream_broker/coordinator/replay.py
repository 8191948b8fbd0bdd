"""Reads the records of an internal topic's partition, in the order of its log.

An unreadable record is skipped and counted; it does not affect the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millstream_kafka.batch import BatchHeader, Buffer, crc_matches, read_header, read_records
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.schema import MalformedRequest

_EXAMPLES = 5


@dataclass(slots=True)
class Skipped:
    """The unreadable parts of a partition's log."""

    unreadable: int = 0
    """Records that were skipped; a batch of which nothing more can be read counts as one."""
    examples: list[str] = field(default_factory=list)
    """The positions of the first unreadable records, and what is wrong with them."""

    def skip(self, offset: int, reason: object) -> None:
        self.unreadable += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"offset {offset}: {reason}")


def replay(
    batches: Iterable[Buffer],
    apply: Callable[[bytes, bytes | None], None],
    skipped: Skipped,
    begin: Callable[[BatchHeader, Buffer], None] | None = None,
) -> None:
    """Call ``apply`` with each record's key and value, in the order of the log; later records replace earlier ones.

    ``begin`` is called before that with each batch, also with control batches, whose records are not applied.
    ``apply`` raises MalformedRequest, struct.error or ValueError for a record that it cannot read.
    """
    for batch in batches:
        header = read_header(batch)
        if begin is not None:
            begin(header, batch)
        if header.is_control:
            continue
        at = header.base_offset
        try:
            if not crc_matches(batch):
                raise ValueError("the CRC does not match the batch")
            for record in read_records(batch):
                at = record.offset
                try:
                    apply(record.key or b"", record.value)
                except (MalformedRequest, struct.error, ValueError) as error:
                    skipped.skip(at, error)
        except (ApiError, ValueError) as error:  # the rest of the batch is unreadable
            skipped.skip(at, error)
