"""The folders of a log directory: ``TOPIC-N`` for each partition, ``TOPIC-N.UUID-delete`` once it is deleted, and
``TOPIC-N.TOPICID-stray`` if it fits no topic that coordination knows, and nobody has deleted it (see ``strays``).

``partition.metadata`` in a partition's folder names its topic's id, so that a new topic of the same name does not get
the old one's records:

    version: 0
    topic_id: xdtBv0jTQdu-G2qGMFiTmA        16 bytes in unpadded URL-safe base64
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.kafka_uuid import uuid_from, uuid_text
from millstream_kafka.topic_partition import TopicPartition

from .files import read_file, write_atomically

logger = logging.getLogger(__name__)

PARTITION_METADATA = "partition.metadata"
STRAY_NOTE = ".stray"
"""In the folder of a stray, and of a log that no leader has confirmed yet (see ``strays``)."""
_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
_STRAY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)\.[0-9a-f]{32}-stray")
_KEPT_OF_NAME = 200  # a file name has at most 255 bytes; ``.UUID-delete`` needs 40 of them


class Folders(NamedTuple):
    """The folders of a log directory; names of strays may be shortened."""

    partitions: list[tuple[Path, TopicPartition]]
    deleted: list[Path]
    strays: list[tuple[Path, TopicPartition]]


def find(directory: Path) -> Folders:
    """The folders of partitions, of deleted ones, and of strays. Blocking. OSError if the directory cannot be read."""
    partitions: list[tuple[Path, TopicPartition]] = []
    strays: list[tuple[Path, TopicPartition]] = []
    deleted = []
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    for name in names:
        if _DELETED.fullmatch(name):
            deleted.append(directory / name)
        elif match := _STRAY.fullmatch(name):
            strays.append((directory / name, (match["topic"], int(match["partition"]))))
        elif match := _PARTITION.fullmatch(name):
            partitions.append((directory / name, (match["topic"], int(match["partition"]))))
        elif name != "lost+found":
            logger.warning("%s is not a partition's folder (TOPIC-NUMBER): left alone", directory / name)
    return Folders(partitions, deleted, strays)


def has_data(directory: Path) -> bool:
    """Whether the directory has a partition, or a stray. Blocking. OSError."""
    with os.scandir(directory) as entries:
        return any(
            (_PARTITION.fullmatch(entry.name) or _STRAY.fullmatch(entry.name)) and entry.is_dir()
            for entry in entries
        )


def name_when_stray(key: TopicPartition, topic_id: uuid.UUID | None) -> str:
    """The number stays whole, because a stray is found again by its topic id and number."""
    topic, partition = key
    suffix = f"-{partition}"
    marked = uuid.uuid4() if topic_id is None else topic_id
    return f"{topic[: _KEPT_OF_NAME - len(suffix)]}{suffix}.{marked.hex}-stray"


def name_when_deleted(key: TopicPartition) -> str:
    topic, partition = key
    return f"{f'{topic}-{partition}'[:_KEPT_OF_NAME]}.{uuid.uuid4().hex}-delete"


def remove(path: Path) -> None:
    """Unlink a folder and its files; what cannot be removed is left to the next start. Blocking."""
    try:
        for name in os.listdir(path):
            os.unlink(path / name)
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.error("%s: cannot be removed: %s", path, error)


def write_topic_id(path: Path, topic_id: uuid.UUID) -> None:
    """Blocking. OSError."""
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"
    write_atomically(str(path / PARTITION_METADATA), text.encode(), sync=False)


def read_topic_id(path: Path) -> uuid.UUID | None:
    """None if the file is missing or invalid."""
    try:
        text = read_file(f"{path}/{PARTITION_METADATA}").decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("%s: %s cannot be read: %s", path, PARTITION_METADATA, error)
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            try:
                return uuid_from(value.strip())
            except ValueError:
                break
    logger.warning("%s: %s has no valid topic_id: assuming the topic of that name", path, PARTITION_METADATA)
    return None
