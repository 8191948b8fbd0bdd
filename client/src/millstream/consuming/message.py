"""A stream's message: a thin wrapper around librdkafka's, which keeps the bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

import confluent_kafka
import msgspec

from millstream.errors import PoisonedMessage

Partition: TypeAlias = tuple[str, int]
"""A topic and the number of one of its partitions."""


class Position(NamedTuple):
    """A consumer's progress in a partition: ``offset`` is that of the next message to process."""

    topic: str
    partition: int
    offset: int


class Decoders(NamedTuple):
    """A stream's deserializers; None leaves bytes unchanged."""

    key: Callable[[bytes], Any] | None
    value: Callable[[bytes], Any] | None


NO_DECODERS: Final = Decoders(None, None)


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message, with the bytes of its key and value. Created by a stream.

    A struct without garbage collection is the cheapest object to create and to read.
    """

    value: Any
    """The deserialized value; None for a tombstone. Raises PoisonedMessage if deserializing fails."""
    _kafka: Any

    @property
    def topic(self) -> str:
        """The name of the message's topic."""
        return self._kafka.topic()  # type: ignore[no-any-return]

    @property
    def partition(self) -> int:
        """The number of the message's partition, from 0."""
        return self._kafka.partition()  # type: ignore[no-any-return]

    @property
    def offset(self) -> int:
        """The message's offset in its partition: the number of its place in the log, from 0."""
        return self._kafka.offset()  # type: ignore[no-any-return]

    @property
    def key(self) -> Any:
        """The deserialized key; None without one. Raises PoisonedMessage if deserializing fails."""
        return self._kafka.key()

    @property
    def raw_key(self) -> bytes | None:
        """The bytes of the key."""
        return self._kafka.key()  # type: ignore[no-any-return]

    @property
    def raw_value(self) -> bytes | None:
        """The bytes of the value."""
        return self._kafka.value()  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 without a timestamp."""
        return self._kafka.timestamp()[1]  # type: ignore[no-any-return]

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Names and values in order; a name may repeat."""
        return tuple(self._kafka.headers() or ())

    @property
    def position(self) -> Position:
        """The position after this message: commit it, or store it with your results."""
        return Position(self.topic, self.partition, self.offset + 1)

    def __repr__(self) -> str:
        return f"<Message {self.topic}-{self.partition} at offset {self.offset}>"


class DecodedMessage(Message, frozen=True, eq=False, gc=False):
    """A message of a stream with deserializers, which run whenever key or value is read."""

    _decoders: Decoders

    @property
    def key(self) -> Any:
        return self._decoded("key", self._decoders.key, self.raw_key)

    @property  # type: ignore[misc]
    def value(self) -> Any:
        return self._decoded("value", self._decoders.value, self.raw_value)

    def _decoded(self, field: str, decode: Callable[[bytes], Any] | None, data: bytes | None) -> Any:
        if decode is None or data is None:
            return data
        try:
            return decode(data)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise PoisonedMessage(self.topic, self.partition, self.offset, field, data, reason) from error


def messages(found: list[Any], decoders: Decoders) -> list[Message | None]:
    """librdkafka's messages as a stream's, in a list that may lose some later."""
    values = map(confluent_kafka.Message.value, found)
    if decoders == NO_DECODERS:
        return list(map(Message, values, found))
    return list(map(DecodedMessage, values, found, repeat(decoders)))
