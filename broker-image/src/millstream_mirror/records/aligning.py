"""Where the source continues behind what the target has, if record numbers do not tell. No I/O.

A task counts its records: a number stands for one record of the source. Compaction takes records out of the source,
perhaps some that were sent just before a worker died. Then counting from the progress on ends too late, and passes
records that were never sent. So the records themselves are compared: those that the task has sent, as the target has
them, with those that the source still has. In the order of both, each record of the source is found among those sent,
until one is not: there the task continues.

A later record may equal one that was sent and compacted away since. Compaction keeps the last record of a key, so what
the source still has of the records sent with one key are the last ones of them. A record of the source that equals an
earlier one of its key is therefore a later one.

The target's copy may be compacted, too. Then a record that was sent may not be found; from there on records are sent
again. They may come twice then, but in order, and none is lost.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millstream_kafka.batch import Record


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A record, without what may be large. ``timestamp``: None where the target's broker has set its own."""

    key: bytes
    digest: bytes
    timestamp: int | None

    @classmethod
    def of(cls, record: Record, *, is_stamped: bool = False) -> Fingerprint:
        content = repr((record.key, record.value, record.headers)).encode()
        return cls(
            _digest(repr(record.key).encode()),
            _digest(content),
            None if is_stamped else record.timestamp,
        )

    def equals(self, other: Fingerprint) -> bool:
        times = {self.timestamp, other.timestamp} - {None}
        return self.digest == other.digest and len(times) <= 1


class Alignment:
    """Takes the source's records in their order, from the progress on; then ``next_offset`` says where to continue."""

    def __init__(self, offset: int, sent: Iterable[Fingerprint]) -> None:
        """``offset``: of the progress. ``sent``: what the target has of the records that were sent since."""
        self._offset = offset
        self._sent = list(sent)
        self._places: dict[bytes, list[int]] = {}
        self._of_key: dict[bytes, list[int]] = {}
        for place, record in enumerate(self._sent):
            self._places.setdefault(record.digest, []).append(place)
            self._of_key.setdefault(record.key, []).append(place)
        self._place = 0
        self._is_over = not self._sent
        self._found: list[tuple[int, int]] = []
        """Offset and place of each record that was found."""

    @property
    def is_over(self) -> bool:
        """No further record is among those sent."""
        return self._is_over

    def add(self, offset: int, record: Fingerprint) -> None:
        """The source's next record."""
        if self._is_over:
            return
        places = self._places.get(record.digest, [])
        for index in range(bisect_left(places, self._place), len(places)):
            if self._sent[places[index]].equals(record):
                self._found.append((offset, places[index]))
                self._place = places[index] + 1
                self._is_over = self._place == len(self._sent)
                return
        self._is_over = True

    @property
    def has_found_all(self) -> bool:
        return len(self._found) == len(self._sent)

    @property
    def next_offset(self) -> int:
        """Behind the last record of the source that was sent."""
        index_of = {place: index for index, (_, place) in enumerate(self._found)}
        needed, best = -1, 0
        for index, (_, place) in enumerate(self._found):
            if (following := self._next_of_key(place)) is not None:
                if following not in index_of:
                    break  # what was sent behind it is gone, so it would be, too: it is a later record
                needed = max(needed, index_of[following])
            if needed <= index:
                best = index + 1
        return self._found[best - 1][0] + 1 if best else self._offset

    def _next_of_key(self, place: int) -> int | None:
        """The place of the next record that was sent with the same key."""
        places = self._of_key[self._sent[place].key]
        index = bisect_left(places, place) + 1
        return places[index] if index < len(places) else None


class Overlap:
    """How many of the last records that were sent are the first that the source still has, after it has deleted others.

    Several answers fit if records are equal. The smallest is taken: some may come twice then, and none is lost.
    """

    def __init__(self, left: Sequence[Fingerprint]) -> None:
        """``left``: the source's first records."""
        self._left = left

    def with_end_of(self, sent: Sequence[Fingerprint], least: int) -> int | None:
        """The number of records, at least ``least``, and 0 only if no other fits; None if none does."""
        are_stamped = any(record.timestamp is None for record in sent)

        def same(record: Fingerprint, other: Fingerprint) -> bool:
            return record.digest == other.digest and (are_stamped or record.timestamp == other.timestamp)

        if not (left := self._left[: len(sent)]):
            return None if least > 0 else 0
        borders = [0]  # as in the search of Knuth, Morris and Pratt
        length = 0
        for index in range(1, len(left)):
            while length and not same(left[index], left[length]):
                length = borders[length - 1]
            length += same(left[index], left[length])
            borders.append(length)
        length = 0
        for record in sent:
            while length == len(left) or (length and not same(record, left[length])):
                length = borders[length - 1]
            length += same(record, left[length])
        found = None if least > 0 else 0
        while length >= max(least, 1):
            found, length = length, borders[length - 1]
        return found


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
