"""Progress of mirrors as confluent-kafka returns it: followed by arbitrary memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.commit_metadata import metadata_of
from millstream.groups import MARK_PARTITION, MARK_PREFIX, _is_mark
from millstream.mirrors import _read

STORED = b'{"v":1,"producer":[5,0,7],"topicId":"t","cluster":"c","at":12,"gap":[1,3,9]}'


class Position:
    """Decodes its metadata on access, like the client library's."""

    def __init__(self, metadata: bytes, topic: str = "t", partition: int = 0) -> None:
        self._metadata = metadata
        self.topic, self.partition = topic, partition

    @property
    def metadata(self) -> str:
        return self._metadata.decode()


@pytest.mark.parametrize("behind", [b"", b"}]", b'"x', b"\xd0", b"\x01\xff\xfe{"])
def test_what_lies_behind_progress_is_ignored(behind: bytes) -> None:
    progress = _read(4, metadata_of(Position(STORED + behind)))
    assert progress is not None
    assert (progress.offset, progress.cluster, progress.topic_id) == (4, "c", "t")
    assert (progress.caught_up_ms, progress.gap) == (12, (1, 3, 9))


@pytest.mark.parametrize("number", ["1e999", "Infinity", "-Infinity", "NaN"])
@pytest.mark.parametrize("field", ["12", "5", "9"])
def test_numbers_without_an_end_are_no_progress(field: str, number: str) -> None:
    """JSON as Python reads it has them: as a time, a mark and in a gap."""
    assert _read(4, STORED.decode().replace(field, number)) is None


@pytest.mark.parametrize("metadata", [None, "", "{", "[]", "consumer-1", '{"v":1}', "1" * 5000])
def test_what_no_worker_has_written_is_no_progress(metadata: str | None) -> None:
    assert _read(4, metadata_of(SimpleNamespace(metadata=metadata))) is None


@pytest.mark.parametrize("behind", [b"", b"\xc0", b"\x01\xff\xfe{"])
def test_the_mark_of_a_group_is_known_whatever_lies_behind_it(behind: bytes) -> None:
    mark: Any = Position(MARK_PREFIX.encode() + b"abc" + behind, *MARK_PARTITION)
    other: Any = Position(b"mine" + behind, *MARK_PARTITION)
    assert _is_mark(mark)
    assert not _is_mark(other)
