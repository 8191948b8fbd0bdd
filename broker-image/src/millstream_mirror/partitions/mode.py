"""What differs by mode: the topics of the target, the flow of records, and the recovery of partition tasks.

Two implementations: aggregate/mode.py and identity/mode.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from millstream_kafka.topic_partition import TopicPartition

from ..config.config import MirrorConfig, Source
from ..kafka.clients import Clients
from ..kafka.progress import Progress, ProgressStore
from ..kafka.topics import TargetTopics
from .assignment import TaskRecovery
from .diverged_partition import DivergedPartition
from .pipeline import Flow
from .stats import Counters, Reachability


@dataclass(frozen=True, slots=True)
class Context:
    """What a mode needs of the mirror of one source."""

    config: MirrorConfig
    source: Source
    clients: Clients
    store: ProgressStore
    commit: Callable[[Mapping[TopicPartition, Progress]], Awaitable[None]]
    """Commits progress as a member of the workers' group."""
    counters: Counters
    reachability: Reachability
    """Of the source."""
    origins: Callable[[str], tuple[str, ...]]
    """Ids of the clusters from which a topic's records come to the source."""
    bytes_per_second: Callable[[int], float] | None
    """The limit for a number of tasks; None: no limit."""
    is_leader: Callable[[], bool]
    """Whether this worker leads the workers' group."""


class MirrorMode:
    """The mode of one source's mirror."""

    keeps_epochs: bool
    """The target's topics have the source's leader epochs."""
    follows_promoted: bool
    """A topic of the source that was promoted from a replica of the target's may be mirrored back."""
    reports_loops: bool
    """A loop is a problem. Otherwise mirrors of both directions may meet: each copies its own topics."""

    topics: TargetTopics
    flow: Flow
    recovery: TaskRecovery

    @property
    def promoted(self) -> Sequence[str]:
        """Topics of the target that are left alone because they were promoted."""
        return ()

    @property
    def diverged(self) -> Sequence[DivergedPartition]:
        """Records that only the target had before its topics were resynced."""
        return ()

    async def close(self) -> None:
        """Stop the mode's own background work, if it has any."""
