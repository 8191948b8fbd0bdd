"""Every error of the library and the command: one tree, with one root.

MillstreamError          all of these; `millstream` prints one as a line. Exit status 1 unless noted
├── Unreachable          (retriable) no broker answers at the bootstrap or advertised addresses, or no ZooKeeper
├── UnknownTopic
├── UnknownGroup
├── NoLeader             (retriable) a partition has no leader
├── RecordTooLarge       exit status 2: a record is larger than its topic allows
├── Failed               the broker or the client library refused; retriable if Kafka's error code is
│   └── NotDelivered     records were not acknowledged; `undelivered` names them
├── BufferFull           (retriable) a producer's buffer stayed full until the time limit
├── NotOwned             the stream does not own the partition, or no longer
├── ProducerFenced       another producer has taken over the transactional id, or the transaction timed out
├── PoisonedMessage      a key or value could not be deserialized; it has topic, partition and offset
├── Closed               a producer or connector was used after it was closed
├── BadInput             exit status 2: an option, an address or a line of input is not valid
│   ├── BadPartition     a caller or a partitioner chose a partition that the topic does not have
│   ├── NotSerializable  a key or value could not be serialized
│   └── MissingExtra     an optional package is not installed
├── Declined             exit status 1: the user answered a question with no
└── Interrupted          exit status 130: Ctrl-C or SIGTERM; the message says what was done before

A text names parameters of the library as "name: " at its beginning or as `name` within; the command writes its options
there (`MillstreamError.naming`).

``retriable`` says whether the same call may succeed later without a change by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

_PARAMETER: Final = re.compile(r"\A(?P<first>[a-z_]+)(?=: )|`(?P<within>[a-z_]+)`")


class MillstreamError(Exception):
    """``problem`` says what is wrong, ``next_step`` what to do, if anything; the text is one line of both."""

    exit_status: ClassVar[int] = 1
    retriable: bool = False

    def __init__(self, problem: str, next_step: str = "") -> None:
        super().__init__(f"{problem}: {next_step}" if next_step else problem)
        self.problem = problem
        self.next_step = next_step

    def naming(self, options: Mapping[str, str]) -> str:
        """The text for a caller who knows parameters by other names, such as ``--bootstrap``."""

        def renamed(found: re.Match[str]) -> str:
            return options.get(found["first"] or found["within"], found[0])

        return _PARAMETER.sub(renamed, str(self))


class Unreachable(MillstreamError):
    """No broker, or no ZooKeeper, answers."""

    retriable = True


class UnknownTopic(MillstreamError):
    """There is no topic of that name."""


class UnknownGroup(MillstreamError):
    """There is no group of that name."""


class NoLeader(MillstreamError):
    """A partition has no leader, so no broker serves it."""

    retriable = True


class RecordTooLarge(MillstreamError):
    """A record is larger than the producer or its topic allows."""

    exit_status = 2


class Failed(MillstreamError):
    """The broker or the client library refused."""

    def __init__(self, problem: str, next_step: str = "", *, retriable: bool = False) -> None:
        super().__init__(problem, next_step)
        self.retriable = retriable


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Records of one topic and partition that failed for one reason. ``partition`` is -1 if none was chosen yet.

    ``keys``: of the first few records. ``retriable``: whether Kafka's error is.
    """

    topic: str
    partition: int
    reason: str
    records: int
    keys: tuple[bytes | None, ...]
    retriable: bool

    def __str__(self) -> str:
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        some = ", ".join("none" if key is None else ascii(key)[1:] for key in self.keys)
        more = ", …" if self.records > len(self.keys) else ""
        return f"{self.records:,} of {where} (keys {some}{more}): {self.reason}"


class NotDelivered(Failed):
    """Records without an acknowledgement. Those that timed out may still be in the log."""

    def __init__(self, undelivered: Sequence[Undelivered]) -> None:
        number = sum(part.records for part in undelivered)
        super().__init__(
            f"{number:,} {'record was' if number == 1 else 'records were'} not delivered",
            "; ".join(map(str, undelivered)),
            retriable=all(part.retriable for part in undelivered),
        )
        self.undelivered = tuple(undelivered)


class BufferFull(MillstreamError):
    """When the time limit was over, a buffer was still full, or records were still in flight."""

    retriable = True


class NotOwned(MillstreamError):
    """The stream does not own the partition, or no longer: another consumer may."""


class ProducerFenced(MillstreamError):
    """Another producer with the same transactional id has begun, or the transaction timed out: close this one."""


class PoisonedMessage(MillstreamError):
    """A key or value could not be deserialized. ``field`` is "key" or "value", ``data`` its bytes."""

    def __init__(self, topic: str, partition: int, offset: int, field: str, data: bytes, reason: str) -> None:
        super().__init__(
            f"{topic}-{partition} at offset {offset}: "
            f"the {field} ({len(data):,} bytes) cannot be deserialized: {reason}",
            "take the next message to skip it",
        )
        self.topic, self.partition, self.offset = topic, partition, offset
        self.field, self.data, self.reason = field, data, reason


class Closed(MillstreamError):
    """A producer or connector was used after it was closed."""


class BadInput(MillstreamError):
    """An option, an address or a line of input is not valid."""

    exit_status = 2


class BadPartition(BadInput):
    """A caller or a partitioner chose a partition that the topic does not have."""


class NotSerializable(BadInput):
    """A key or value could not be serialized."""


class MissingExtra(BadInput):
    """An optional package is not installed."""


class Declined(MillstreamError):
    """The user answered a question with no."""


class Interrupted(MillstreamError):
    """Ctrl-C or SIGTERM; the message says what was done."""

    exit_status = 130
