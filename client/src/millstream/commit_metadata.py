"""The metadata that is committed with a position, as confluent-kafka has it."""

from __future__ import annotations

from typing import Protocol


class Position(Protocol):
    """A TopicPartition of confluent-kafka."""

    @property
    def metadata(self) -> str | None: ...


def metadata_of(position: Position) -> str:
    """Empty if there is none. Text may follow that is not the metadata's: confluent-kafka does not know its length."""
    try:
        return position.metadata or ""
    except UnicodeDecodeError as error:  # what follows is other memory
        return error.object.decode(errors="replace")
