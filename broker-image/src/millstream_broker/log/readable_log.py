"""What a log gives its readers: batches, and look-ups by time. See ``log``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millstream_kafka.batch import HEADER_SIZE
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import timestamps, transaction_index
from .files import FileSlice
from .snapshot import LogSnapshot
from .state import LogState


class ReadableLog(LogState):
    __slots__ = ()

    def read(
        self, offset: int, max_bytes: int, *, upper: int, min_one: bool, may_wait: bool = True
    ) -> FileSlice | None:
        """Whole batches below ``upper``, from the one that contains ``offset``; None if there is none.

        At most ``max_bytes`` of one segment; with ``min_one``, at least the first batch, whatever its size.
        Raises ApiError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; NOT_LEADER_OR_FOLLOWER during a truncation.
        Raises NotCachedError if the read would wait for the disk and ``may_wait`` is False (see
        :meth:`loading`).
        """
        if self.offline is not None or self.truncating:
            raise self._refusal()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} and {self.log_end_offset}",
            )
        upper = min(upper, self.log_end_offset)
        if offset >= upper:
            return None
        try:
            return self.segments.read(
                offset,
                max_bytes,
                upper,
                min_one=min_one,
                log_end_offset=self.log_end_offset,
                may_wait=may_wait,
            )
        except OSError as error:
            raise self.failed(error) from error

    def aborted_before_read_end(
        self, offset: int, *, may_wait: bool = True
    ) -> list[transaction_index.AbortedTransaction]:
        """The aborted transactions that concern the batches of the last :meth:`read`, which began at ``offset``.

        Raises ApiError KAFKA_STORAGE_ERROR, and NotCachedError as :meth:`read` does.
        """
        segments = self.segments
        if not segments.aborted:
            return []
        base = segments[segments.index_of(offset)].base_offset
        try:
            return segments.aborted.collect(base, offset, segments.read_end, may_wait=may_wait)
        except OSError as error:
            raise self.failed(error) from error

    def loading(self, offset: int, max_bytes: int, *, upper: int) -> Callable[[], None]:
        """A function to run in a thread before the next :meth:`read`: it loads the range. OSError."""
        return self.segments.loading(offset, max_bytes, min(upper, self.log_end_offset), self.log_end_offset)

    def snapshot(self, offset: int) -> LogSnapshot:
        """The log from the batch that contains ``offset``, for readers in any thread. Raises OSError.

        Later changes to the log, even its deletion, do not affect the snapshot.
        """
        return LogSnapshot(self.segments, offset, self.log_end_offset)

    def batches_from(self, offset: int) -> Iterator[bytes]:
        """The batches of a :meth:`snapshot` taken now. Iterate in any thread; blocking."""
        return self.snapshot(offset).batches()

    def last_header(self) -> bytes | None:
        """The header of the last batch; None if there is none. Raises ApiError KAFKA_STORAGE_ERROR."""
        if self.log_end_offset <= self.log_start_offset:
            return None
        end = self.log_end_offset
        try:
            last = self.segments.read(end - 1, 0, end, min_one=True, log_end_offset=end)
            return None if last is None else last.file.pread(HEADER_SIZE, last.position)
        except OSError as error:
            raise self.failed(error) from error

    # -- look-ups ---------------------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp_ms: int, check: Callable[[], None] = lambda: None
    ) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record not older than ``timestamp_ms``, or None.

        ``check`` is called often, and raises to end the look-up.

        Blocking, in any thread. Raises ApiError: KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE, INVALID_RECORD;
        NOT_LEADER_OR_FOLLOWER if the log is truncated meanwhile; UNKNOWN_TOPIC_OR_PARTITION if it is deleted,
        even if another log has its folder by then.
        """
        return self._look_up(
            lambda: timestamps.first_from(
                self.segments,
                timestamp_ms,
                self.log_start_offset,
                self.config.max_decompressed_message_bytes,
                check,
            )
        )

    def max_timestamp(self, check: Callable[[], None] = lambda: None) -> tuple[int, int, int] | None:
        """Like :meth:`offset_for_timestamp`, for the first record with the largest timestamp."""
        return self._look_up(
            lambda: timestamps.latest(self.segments, self.config.max_decompressed_message_bytes, check)
        )

    def _look_up(self, find: Callable[[], timestamps.Found | None]) -> timestamps.Found | None:
        """Run a look-up, then check that the log was not truncated or deleted meanwhile."""
        truncations = self.segments.truncations
        try:
            found = find()
        except Exception as error:
            self._check_unchanged(truncations)
            if isinstance(error, OSError):
                raise self.failed(error) from error
            raise
        self._check_unchanged(truncations)
        return found

    def _check_unchanged(self, truncations: int) -> None:
        if self.offline is not None or self.truncating:
            raise self._refusal()
        if truncations != self.segments.truncations:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.segments.path} was truncated meanwhile")
