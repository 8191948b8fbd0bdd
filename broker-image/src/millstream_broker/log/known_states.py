"""The newest state of each partition that a broker has seen, noted in each of its log directories (``.states``).

    1                                                 format
    xdtBv0jTQdu-G2qGMFiTmA 3 12 40 flights            topic id, partition, leader epoch, version of the state, topic

At a start, coordination that has an older state is an older copy of itself, however young, and whatever ended the
broker (`generations`). Nothing is fsynced: coordination is durable, so after a crash of the machine it is not behind
what is left here.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.kafka_uuid import uuid_from, uuid_text

from .files import write_atomically

FILE_NAME = ".states"
FORMAT = "1"
SLACK = 1000
"""Number of lines after which the file is written anew, if it has grown to several times its contents."""

logger = logging.getLogger(__name__)

TopicIdPartition = tuple[uuid.UUID, int]


class KnownState(NamedTuple):
    """Of two states of a partition, the newer one is larger."""

    leader_epoch: int
    version: int


class KnownStates:
    """`note` is called on the loop; the others are blocking, in any thread."""

    def __init__(self) -> None:
        self.failed: Callable[[Path, OSError], None] = lambda directory, error: None
        self.on_change: Callable[[], None] = lambda: None
        """Called when `write` has work."""
        self.topics: dict[uuid.UUID, str] = {}
        self._known: dict[TopicIdPartition, KnownState] = {}
        self._new: dict[TopicIdPartition, KnownState] = {}
        self._directories: list[Path] = []
        self._lock = threading.Lock()
        self._lines = 0

    def begin(self, directories: Iterable[Path], keep: Container[TopicIdPartition]) -> None:
        """Read the files of these directories, and write them anew, with the partitions to keep."""
        self._directories = list(directories)
        for directory in self._directories:
            for key, known, topic in _read(directory):
                if key in keep and known > self._known.get(key, KnownState(-1, -1)):
                    self._known[key] = known
                    self.topics[key[0]] = topic
        with self._lock:
            self._write_anew()

    def all(self) -> dict[TopicIdPartition, KnownState]:
        """The newest state of each partition."""
        return self._known.copy()

    def note(self, topic: str, topic_id: uuid.UUID, partition: int, leader_epoch: int, version: int) -> None:
        """A state that this broker acts on; older ones than the known one are ignored."""
        key, seen = (topic_id, partition), KnownState(leader_epoch, version)
        if version < 0 or seen <= self._known.get(key, KnownState(-1, -1)):
            return
        self._known[key] = self._new[key] = seen
        self.topics[topic_id] = topic
        self.on_change()

    def write(self) -> None:
        """Append what has changed."""
        with self._lock:
            new, self._new = self._new, {}
            if not new:
                return
            self._lines += len(new)
            if self._lines > SLACK + 4 * len(self._known):
                self._write_anew()
                return
            lines = "".join(self._line(key, known) for key, known in new.items())
            for directory in self._directories:
                try:
                    with open(directory / FILE_NAME, "a", encoding="utf-8") as file:
                        file.write(lines)
                except OSError as error:
                    self._failed(directory, error)

    def forget(self, states: Mapping[TopicIdPartition, KnownState]) -> None:
        """Forget these states, of which no newer ones have been seen: another history continues without them."""
        with self._lock:
            for key, state in states.items():
                if self._known.get(key) == state:
                    del self._known[key]
            self._write_anew()

    def leave(self, directory: Path) -> None:
        """The directory is offline."""
        with self._lock:
            self._directories = [other for other in self._directories if other != directory]

    def _write_anew(self) -> None:
        known = self._known.copy()
        data = "".join([f"{FORMAT}\n", *(self._line(*entry) for entry in known.items())]).encode()
        for directory in self._directories:
            try:
                write_atomically(str(directory / FILE_NAME), data, sync=False)
            except OSError as error:
                self._failed(directory, error)
        self._lines = len(known)

    def _line(self, key: TopicIdPartition, known: KnownState) -> str:
        topic_id, partition = key
        return f"{uuid_text(topic_id)} {partition} {known.leader_epoch} {known.version} {self.topics[topic_id]}\n"

    def _failed(self, directory: Path, error: OSError) -> None:
        logger.warning("%s: cannot write %s: %s", directory, FILE_NAME, error.strerror)
        self.failed(directory, error)


def _read(directory: Path) -> Iterable[tuple[TopicIdPartition, KnownState, str]]:
    path = directory / FILE_NAME
    try:
        head, *lines = path.read_text("utf-8").splitlines()
        if head != FORMAT:
            raise ValueError(f"format {head} is not known")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be used: %s", path, error)
        return
    for line in lines:
        try:
            topic_id, partition, leader_epoch, version, topic = line.split(" ")
            yield (uuid_from(topic_id), int(partition)), KnownState(int(leader_epoch), int(version)), topic
        except (ValueError, TypeError):  # a line that a crash has cut off
            continue


def forgotten(
    known: Mapping[TopicIdPartition, KnownState], stored: Mapping[TopicIdPartition, KnownState]
) -> dict[TopicIdPartition, int]:
    """The partitions of whose known states coordination has forgotten some, and how many leader epochs, but at least 1.

    It has if its state is older, or if the known version was another state: then it has been changed since it became
    an older copy.
    """
    return {
        key: max(state.leader_epoch - stored[key].leader_epoch, 1)
        for key, state in known.items()
        if key in stored and contradicts(state, stored[key])
    }


def contradicts(known: KnownState, stored: KnownState) -> bool:
    """Whether the stored state cannot follow the known one."""
    return (
        stored.version < known.version
        or stored.leader_epoch < known.leader_epoch
        or (stored.version == known.version and stored.leader_epoch != known.leader_epoch)
    )
