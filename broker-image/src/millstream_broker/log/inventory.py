"""The logs that a broker has, noted in each of its log directories (``.inventory``), so that a missing one is noticed.

    1 7                                               format, and the number of the start that wrote the file
    + xdtBv0jTQdu-G2qGMFiTmA 3 flights /var/lib/a     topic id, partition, topic, log directory
    - xdtBv0jTQdu-G2qGMFiTmA 3                        it was deleted, or is a stray

A directory may be taken out of ``log.dirs``, not be mounted, or lose a single folder. The broker then has no log of a
partition that it had one of. That partition is not new: an empty log in its place would vouch for records that it
lacks. A log with records whose folder has lost its topic id is not missing: it gets the id noted for this place.

Each start writes the file anew, with the logs found and those that are missing, in every directory. Of several files,
those of the latest start count: a directory that was away has an older one. After a crash of the machine the directory
does not vouch for its logs anyway (``generations``), so nothing is fsynced.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.kafka_uuid import uuid_from, uuid_text

from .directory_notes import DirectoryNotes, read_notes

FILE_NAME = ".inventory"
FORMAT = 1

TopicIdPartition = tuple[uuid.UUID, int]


class Place(NamedTuple):
    """The name of a log's topic, and its log directory."""

    topic: str
    directory: str


class Inventory:
    """All calls are blocking, in any thread."""

    def __init__(self) -> None:
        self.is_known = False
        """Whether the directories had an inventory at the start."""
        self.missing: dict[TopicIdPartition, Place] = {}
        """The logs that no directory had at the start."""
        self.notes = DirectoryNotes(FILE_NAME)
        self._logs: dict[TopicIdPartition, Place] = {}
        self._start = 0

    @staticmethod
    def has_any(directory: Path) -> bool:
        """Whether the directory's file names a log."""
        noted = _read(directory)
        return noted is not None and bool(noted[1])

    def begin(
        self,
        directories: Iterable[Path],
        found: Mapping[TopicIdPartition, Place],
        strays: Container[TopicIdPartition] = (),
    ) -> None:
        """Read the files of these directories, and write them anew with the logs found there."""
        self.notes.directories = list(directories)
        noted = [read for directory in self.notes.directories if (read := _read(directory)) is not None]
        latest = max((start for start, _ in noted), default=0)
        for start, logs in noted:
            if start == latest:
                self._logs |= {key: place for key, place in logs.items() if key not in strays}
        self.is_known = bool(noted)
        self.missing = {key: place for key, place in self._logs.items() if key not in found}
        self._logs |= found
        self._start = latest + 1
        with self.notes.lock:
            self._write_anew()

    def owner(self, place: Place, partition: int) -> uuid.UUID | None:
        """The topic id of the log that was there; None if it is not missing, or may be one of several."""
        owners = [
            topic_id
            for (topic_id, index), noted in self.missing.items()
            if (index, noted) == (partition, place)
        ]
        return owners[0] if len(owners) == 1 else None

    def add(self, topic_id: uuid.UUID | None, partition: int, place: Place) -> None:
        if topic_id is None:
            return
        self.missing.pop((topic_id, partition), None)
        if self._logs.get((topic_id, partition)) != place:
            self._logs[topic_id, partition] = place
            self._append(_line(topic_id, partition, place))

    def remove(self, topic_id: uuid.UUID | None, partition: int) -> None:
        if topic_id is not None and self._logs.pop((topic_id, partition), None) is not None:
            self.missing.pop((topic_id, partition), None)
            self._append(f"- {uuid_text(topic_id)} {partition}\n")

    def _append(self, line: str) -> None:
        with self.notes.lock:
            if self.notes.is_long(1, len(self._logs)):
                self._write_anew()
            else:
                self.notes.append(line)

    def _write_anew(self) -> None:
        lines = [_line(*key, place) for key, place in self._logs.items()]
        self.notes.write_anew(f"{FORMAT} {self._start}", lines)


def _line(topic_id: uuid.UUID, partition: int, place: Place) -> str:
    return f"+ {uuid_text(topic_id)} {partition} {place.topic} {place.directory}\n"


def _read(directory: Path) -> tuple[int, dict[TopicIdPartition, Place]] | None:
    """The number of the start, and the logs; None if there is no file that can be used."""
    if (found := read_notes(directory / FILE_NAME, FORMAT, 2)) is None:
        return None
    (_, start), lines = found
    logs: dict[TopicIdPartition, Place] = {}
    for line in lines:
        try:
            sign, topic_id, partition, *place = line.split(" ", 4)
            key = uuid_from(topic_id), int(partition)
            if sign == "+":
                logs[key] = Place(*place)
            elif sign == "-":
                logs.pop(key, None)
        except (ValueError, TypeError):  # a line that a crash has cut off
            continue
    return start, logs
