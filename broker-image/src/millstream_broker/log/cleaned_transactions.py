"""Which batches of transactions a compaction removes, as in Kafka.

It gets the headers of all batches of a range, in order, and knows the aborted transactions of the range.

- Records of aborted transactions go. They replace no others, not even tombstones.
- A marker stays as long as a batch of its transaction is there, even an empty one. Afterwards nobody needs it, except
  readers that began before: it goes after a delete horizon, as tombstones do. An empty marker goes, too.
- An aborted transaction of which a batch was there stays in the transaction index, for the same readers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millstream_kafka.batch import BatchHeader
from millstream_kafka.control_batch import EndTransactionMarker

from .transaction_index import AbortedTransaction


class CleanedTransactions:
    __slots__ = ("_aborted", "_committed", "_met", "_next", "needed")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._next = deque(sorted(aborted, key=lambda each: each.first_offset))
        """Aborted transactions that begin later."""
        self._aborted: dict[int, AbortedTransaction] = {}
        """Aborted transactions that are open here, by producer id."""
        self._met: set[int] = set()
        """Producers of such transactions of which a batch was there."""
        self._committed: set[int] = set()
        """Producers with a batch of a transaction that was committed."""
        self.needed: list[AbortedTransaction] = []
        """Aborted transactions of which a batch was there, in the order of their markers; the owner empties it."""

    def _begin(self, offset: int) -> None:
        """Open the transactions that begin up to this offset."""
        while self._next and self._next[0].first_offset <= offset:
            transaction = self._next.popleft()
            self._aborted[transaction.producer_id] = transaction
            self._met.discard(transaction.producer_id)

    def drops_data(self, header: BatchHeader) -> bool:
        """Whether the records of a batch go because their transaction was aborted."""
        if not header.is_transactional:
            return False
        self._begin(header.last_offset)
        transaction = self._aborted.get(header.producer_id)
        if transaction is not None and header.base_offset < transaction.last_offset:
            self._met.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def drops_marker(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """Whether a control batch may go, after a delete horizon; ``marker`` is None if it is empty."""
        self._begin(header.last_offset)
        if marker is None:
            return True
        producer_id = header.producer_id
        if marker.committed:
            is_met = producer_id in self._committed
            self._committed.discard(producer_id)
            return not is_met
        transaction, is_met = self._aborted.pop(producer_id, None), producer_id in self._met
        self._met.discard(producer_id)
        if transaction is not None and is_met:
            self.needed.append(transaction)
        return not is_met
