"""Whether this broker can vouch for its logs: generations tell an older copy of a disk from the disk itself.

Each log directory holds a number, its generation (`.generation`), and coordination keeps the last one it got, by
`directory.id`. Generations rise when the broker starts, while its logs grow, and when it stops cleanly; always in the
directory first, then in coordination. So a directory behind coordination is an older copy (a restored snapshot), after
any sequence of crashes; one ahead is the directory itself. If it is ahead by more than one, coordination is the older
copy (`ahead`), and the controller compares logs before anybody leads (`controller.comparison`). A start raises
generations twice, and so does a clean stop that reaches coordination, so that each is noticed by itself.

A directory vouches for its logs unless

- it is behind coordination; then its logs are verified as after a restart of the machine, whatever its marks say;
- the machine restarted, or the directory is new: there is no clean stop that still holds (`LogDir.clean`), and the
  page cache of the last process is gone (`LogDir.same_boot`); its generation is set to 0 before anything else happens;
- its generation is 0: the broker was killed before a controller had acted on one of the two cases above.

Coordination is the older copy, too, if its state of a partition contradicts the newest one that a directory has noted
(`log.known_states`): generations rise only every few seconds.

The broker as a whole does not vouch for its logs while a directory is offline, or a log that it had is in none of them
(`log.inventory`).

A broker with a directory that does not vouch registers as `unclean`, and the controller elects others if it can
(`controller.elections`). Until that is stored (`accepted`), its generations do not change, and neither do those of a
broker that is ahead.

It does not recognise a copy taken since the last rise and restored after a crash before the next one. While logs
grow, that period is `replica.high.watermark.checkpoint.interval.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from millstream_kafka.protocol.errors import ApiError

from ..coordination.coordination import Coordination
from ..log.directory import LogDir, LogDirError
from ..log.known_states import KnownState, TopicIdPartition, forgotten
from ..log.manager import LogManager
from ..runtime.slices import cooperatively

STOP_S = 2.0
"""Longest time that a stop waits until coordination has the last generations."""

log = logging.getLogger(__name__)


class Generations:
    """The generations of one broker's log directories: `load`, `judge`, then `rise`. All calls are made on the loop."""

    def __init__(self, broker_id: int, logs: LogManager, coordination: Coordination) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._coordination = coordination
        self.known: Mapping[str, int] = {}
        """Coordination's generations at the start."""
        self._ends = 0
        self._rising = asyncio.Lock()
        self._is_shown = True
        self.directory = ""
        """The id of the first log directory."""
        self.vouches = False
        """Whether every log directory vouches for its logs; otherwise generations do not rise."""
        self.is_older_copy = False
        self.ahead = 0
        """Number of rises or leader epochs that coordination has forgotten, as it was restored from an older copy."""
        self._forgotten: Mapping[TopicIdPartition, KnownState] = {}

    async def load(self) -> None:
        """Before the logs are opened. Raises CoordinationError."""
        self.known = await self._coordination.generations(self._broker_id)

    async def judge(self) -> None:
        """Call it once the logs are open. Raises LogDirError."""
        homes = self._logs.dirs
        await asyncio.to_thread(_identify, homes)
        self.directory = homes[0].directory_id
        self.vouches = not self._logs.offline and not self._logs.inventory.missing
        for home in homes:
            self._judge(home, self.known.get(home.directory_id))

    async def compare(self) -> None:
        """Whether coordination is older than this broker's log directories. Raises CoordinationError."""
        await self._compare_states()
        if self.ahead:
            await asyncio.to_thread(self._logs.distrust)

    async def _compare_states(self) -> None:
        """Whether coordination has an older state of a partition than this broker. Raises CoordinationError."""
        states = self._logs.states
        known = states.all()
        requested = [(states.topics[topic_id], topic_id, index) for topic_id, index in known]
        found: dict[TopicIdPartition, int] = {}
        for is_newest in (False, True):  # another server may only be behind
            stored = await self._coordination.versions(requested, newest=is_newest)
            found = forgotten(known, {key: KnownState(*state) for key, state in stored.items()})
            if not found:
                return
        self._forgotten = {key: known[key] for key in found}
        topic_id, index = next(iter(found))
        was_known, self.ahead = bool(self.ahead), max(self.ahead, *found.values())
        if was_known:
            return
        log.warning(
            "coordination was restored from an older copy (ZooKeeper, or the file of a broker by itself): it has older"
            " states of %d partitions than this broker has seen, such as %s-%d. The controller asks all brokers for"
            " their logs, and the most complete one of each partition leads.",
            len(found),
            states.topics[topic_id],
            index,
        )

    def _judge(self, home: LogDir, known: int | None) -> None:
        own = home.generation or 0
        is_older = own < (known or 0)
        self.is_older_copy |= is_older
        if home.is_older_copy and own:
            self.vouches = False
            log.error(
                "log.dirs: %s is an older copy: its generation is %d, coordination has seen %d. It lacks records that"
                " were acknowledged since. Other replicas lead, and this broker copies the records from them. A"
                " partition without other replicas has lost them. If the others are gone for good, elect this broker"
                " with kafka-leader-election --election-type unclean.",
                home.path,
                own,
                known,
            )
        elif is_older or not (home.clean or home.same_boot) or home.generation == 0:
            self.vouches = False
            if self.known:
                log.warning(
                    "log.dirs: %s may lack acknowledged records: it is new, or its machine restarted without a clean"
                    " stop, or it is an older copy (generation %d, coordination has seen %d). Other replicas lead"
                    " where there are any.",
                    home.path,
                    own,
                    known or 0,
                )
        elif own > (known or 0) + 1:
            if home.is_from_another_cluster:
                return  # its generation is of another cluster
            self.ahead = max(self.ahead, own - (known or 0) - 1)
            log.warning(
                "log.dirs: %s has generation %d, coordination has seen %d: coordination was restored from an older copy"
                " (ZooKeeper, or the file of a broker by itself). The controller asks all brokers for their logs, and"
                " the most complete one of each partition leads.",
                home.path,
                own,
                known or 0,
            )

    async def accepted(self) -> None:
        """The controller has acted: nothing relies on records that may be missing here."""
        self.vouches, self.ahead = True, 0
        if forgotten_states := self._forgotten:
            self._forgotten = {}
            await asyncio.to_thread(self._logs.states.forget, forgotten_states)
        await self.rise()

    async def rise_if_grown(self) -> None:
        """Raises CoordinationError."""
        ends = 0
        async for partition_log in cooperatively(self._logs):
            ends += partition_log.log_end_offset
        if ends != self._ends or not self._is_shown:
            await self.rise()
            self._ends = ends

    async def rise(self, *, is_last: bool = False) -> None:
        """Raise the generations and show them to coordination; `is_last` before a clean stop. Raises CoordinationError.

        A crash of the machine may undo an unsynced rise: then the directory does not vouch anyway, unless it was
        stopped cleanly before.
        """
        async with self._rising:
            if not self.vouches or self.ahead:
                return
            if self._is_shown or is_last:  # otherwise they are ahead of coordination already
                await asyncio.to_thread(self._raise, is_last)
            self._is_shown = False
            shown = {home.directory_id: home.generation or 0 for home in self._logs.dirs if home.directory_id}
            await self._coordination.show_generations(self._broker_id, shown)
            self._is_shown = True

    def _raise(self, sync: bool) -> None:
        for home in list(self._logs.dirs):
            if home.failure is None:
                known = self.known.get(home.directory_id, 0)
                try:
                    home.write_generation(max(home.generation or 0, known) + 1, sync=sync)
                except OSError as error:
                    home.check(error)

    async def leap(self) -> None:
        """The tree has become an older copy of itself: let the next start notice that, whatever it still has."""
        async with self._rising:
            for _ in range(2):
                await asyncio.to_thread(self._raise, True)
            self._is_shown = False

    async def stop(self) -> None:
        """Call before a clean stop; within STOP_S even if coordination is down."""
        try:
            async with asyncio.timeout(STOP_S):
                for _ in range(2):
                    await self.rise(is_last=True)
        except (TimeoutError, ApiError, LogDirError) as error:
            log.warning("cannot store the generations of the log directories: %s", error)


def _identify(homes: list[LogDir]) -> None:
    """Read or create the directories' ids; a directory on a full disk is judged without one. LogDirError."""
    for home in homes:
        try:
            home.own_id()
        except LogDirError as error:
            if home is homes[0]:
                raise
            log.error("%s", error)
