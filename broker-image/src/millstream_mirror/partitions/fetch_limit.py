"""The limit of a source in bytes a second, for the fetches of one worker; and whose turn it is under the limit."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping

from millstream_kafka.protocol.fetch import FetchResponse
from millstream_kafka.topic_partition import TopicPartition

from ..records.throttle import TokenBucket
from .partition_task import PartitionTask
from .stats import Counters

MOST_WAIT_S = 0.1


class FetchLimit:
    def __init__(self, bytes_per_second: Callable[[int], float], counters: Counters) -> None:
        """``bytes_per_second`` returns the limit for a number of tasks."""
        self._bytes_per_second = bytes_per_second
        self._counters = counters
        self._bucket: TokenBucket | None = None
        self._turns = itertools.count(1)

    def reserve(self, tasks: int) -> int:
        """Number of bytes to fetch now; 0 means none."""
        now, rate = time.monotonic(), self._bytes_per_second(tasks)
        if self._bucket is None:
            self._bucket = TokenBucket(rate, now)
        self._bucket.change(rate, now)
        return self._bucket.reserve(now)

    async def wait(self) -> None:
        """Wait until bytes may be available; only after `reserve`."""
        assert self._bucket is not None
        begun = time.monotonic()
        await asyncio.sleep(min(max(self._bucket.wait_s(), 0.001), MOST_WAIT_S))
        self._counters.throttled_seconds += time.monotonic() - begun

    def settle(self, reserved: int, used: int) -> None:
        """End a fetch; only after `reserve`."""
        assert self._bucket is not None
        self._bucket.settle(reserved, used)

    def take_turns(
        self, first: PartitionTask, response: FetchResponse, tasks: Mapping[TopicPartition, PartitionTask]
    ) -> int:
        """Take turns: a response has records of few tasks, so the next request names the others first.

        Returns the bytes of all records.
        """
        used = 0
        first.turn = next(self._turns)
        for topic in response.responses:
            for data in topic.partitions:
                if isinstance(data.records, memoryview) and (size := len(data.records)):
                    used += size
                    if (task := tasks.get((topic.topic, data.partition_index))) is not None:
                        task.turn = next(self._turns)
        return used
