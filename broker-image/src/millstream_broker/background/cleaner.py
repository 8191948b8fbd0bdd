"""Compaction in the background: which logs, how many at a time, and the resources they may use.

`log.cleaner.threads` passes run at a time, each over another log and in its own thread: not those of
`asyncio.to_thread`, where a throttled pass would delay fsyncs. Together they use at most SHARE of one core and
`log.cleaner.dedupe.buffer.size` bytes for keys, and read and write `log.cleaner.io.max.bytes.per.second`.

A log whose pass fails does not delay the others. After a disk error it is due again at the cleaner's next look
(`log.cleaner.backoff.ms`); after any other it is `uncleanable` until a restart, or until
`max.decompressed.message.bytes` is raised, which the metric `millstream_uncleanable_partitions` counts.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from time import time
from typing import cast

from millstream_process import supervision

from ..config.config import BrokerConfig
from ..log.compaction import KEY_BYTES, Allowance, Compaction, Throttler, give_up
from ..log.log import Log
from ..log.manager import LogManager
from ..replication.replicas import Replicas

SHARE = 0.5
"""Share of one core for all passes: the loop needs the same interpreter."""

log = logging.getLogger(__name__)


class Cleaner:
    """All calls are made on the loop."""

    def __init__(self, config: BrokerConfig, logs: LogManager, replicas: Replicas) -> None:
        self._config = config
        self._logs = logs
        self._replicas = replicas
        self._throttle = Throttler(lambda: cast(float, config["log.cleaner.io.max.bytes.per.second"]))
        self._passes = supervision.Tasks()
        self._compacting: set[Compaction] = set()
        self._failed: set[Log] = set()
        """Logs on which a pass failed since the cleaner last looked."""

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(max(self._config.integer("log.cleaner.backoff.ms"), 1) / 1000)
                self._failed.clear()
                self._begin_passes()
        finally:
            await self._passes.cancel()

    def _begin_passes(self) -> None:
        """Begin as many passes as may run, over the logs that are due."""
        while len(self._passes) < self._config.integer("log.cleaner.threads"):
            if (compaction := self._next()) is None:
                break
            self._passes.add(supervision.run("compaction", self._clean(compaction)))

    def _next(self) -> Compaction | None:
        """The dirtiest log that is due and that no pass is compacting."""
        config = self._config
        threads = max(config.integer("log.cleaner.threads"), 1)
        allowance = Allowance(
            share=SHARE / threads,
            max_keys=max(config.integer("log.cleaner.dedupe.buffer.size") // threads // KEY_BYTES, 1),
            throttle=self._throttle,
        )

        compaction = self._logs.next_compaction(
            int(time() * 1000),
            self._replicas.high_watermark,
            allowance=allowance,
            busy=self._failed.union(compaction.log for compaction in self._compacting),
        )
        if compaction is not None:
            self._compacting.add(compaction)
        return compaction

    async def _clean(self, compaction: Compaction | None) -> None:
        """Clean this log, then others, until none is due."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "cleaner") as thread:
            while compaction is not None:
                try:
                    while await loop.run_in_executor(thread, compaction.work):
                        compaction.commit()
                    compaction.finish()
                    await loop.run_in_executor(thread, self._logs.remove_deleted)
                except OSError as error:
                    if not compaction.log.is_deleted:  # a deleted log's files may be missing
                        self._failed.add(compaction.log)
                        log.error("%s: compaction failed: %s", compaction.log.directory, error)
                    if not isinstance(error, FileNotFoundError):  # a missing file was deleted meanwhile
                        compaction.log.failed(error)
                except Exception as error:
                    give_up(compaction.log, error)
                finally:
                    compaction.cancel()
                    self._compacting.discard(compaction)
                compaction = self._next()
