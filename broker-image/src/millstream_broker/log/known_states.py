"""The newest state of each partition that a broker has seen, noted in each of its log directories (``.states``).

    1                                                 format
    xdtBv0jTQdu-G2qGMFiTmA 3 12 40 flights            topic id, partition, leader epoch, version of the state, topic

At a start, coordination that has an older state is an older copy of itself, however young, and whatever ended the
broker (`generations`). Nothing is fsynced: coordination is durable, so after a crash of the machine it is not behind
what is left here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.kafka_uuid import uuid_from, uuid_text

from .directory_notes import DirectoryNotes, read_notes

FILE_NAME = ".states"
FORMAT = 1

TopicIdPartition = tuple[uuid.UUID, int]


class KnownState(NamedTuple):
    """Of two states of a partition, the newer one is larger."""

    leader_epoch: int
    version: int


class KnownStates:
    """`note` is called on the loop; the others are blocking, in any thread."""

    def __init__(self) -> None:
        self.notes = DirectoryNotes(FILE_NAME)
        self.on_change: Callable[[], None] = lambda: None
        """Called when `write` has work."""
        self.topics: dict[uuid.UUID, str] = {}
        self._known: dict[TopicIdPartition, KnownState] = {}
        self._new: dict[TopicIdPartition, KnownState] = {}

    def begin(self, directories: Iterable[Path], keep: Container[TopicIdPartition]) -> None:
        """Read the files of these directories, and write them anew, with the partitions to keep."""
        self.notes.directories = list(directories)
        for directory in self.notes.directories:
            for key, known, topic in _read(directory):
                if key in keep and known > self._known.get(key, KnownState(-1, -1)):
                    self._known[key] = known
                    self.topics[key[0]] = topic
        with self.notes.lock:
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
        with self.notes.lock:
            new, self._new = self._new, {}
            if not new:
                return
            if self.notes.is_long(len(new), len(self._known)):
                self._write_anew()
            else:
                self.notes.append("".join(self._line(key, known) for key, known in new.items()))

    def forget(self, states: Mapping[TopicIdPartition, KnownState]) -> None:
        """Forget these states, of which no newer ones have been seen: another history continues without them."""
        with self.notes.lock:
            for key, state in states.items():
                if self._known.get(key) == state:
                    del self._known[key]
            self._write_anew()

    def _write_anew(self) -> None:
        self.notes.write_anew(str(FORMAT), (self._line(*entry) for entry in self._known.copy().items()))

    def _line(self, key: TopicIdPartition, known: KnownState) -> str:
        topic_id, partition = key
        return f"{uuid_text(topic_id)} {partition} {known.leader_epoch} {known.version} {self.topics[topic_id]}\n"


def _read(directory: Path) -> Iterable[tuple[TopicIdPartition, KnownState, str]]:
    _, lines = read_notes(directory / FILE_NAME, FORMAT, 1) or ((), ())
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
