"""Sends the same requests to Millstream and to Apache Kafka, and compares the responses field by field.

    beside.same(delete_topics.API, topic_names=["no-such-topic"], topics=[{"name": "no-such-topic"}])

sends the request in every version that both advertise and fails with the fields that differ. A request is written as
its fields, and structs in it as dicts; omitted fields have their defaults, and fields that a version does not carry are
not sent. In its strings ``{v}`` is the version, so that each version creates its own objects. ``keep`` stores values
that the peers name differently (members, topic ids) under the test's name for them, and ``Its(name)`` inserts them.

Values that must differ are replaced before the comparison: ids, ports, folders, cluster ids, the time of day; the part
of a batch that Kafka cuts off at the end of fetched records is dropped. Arrays of named
objects are compared by name, because their order means nothing. If Kafka leaves an error's message out, ours may have
one. Beside another release than the tests were written for (`KAFKA_VERSION`), errors' messages and configuration keys
that only one has are not compared, and a test that names a version which that release does not serve is skipped.
``but={part of a field's path: why}`` allows fields to differ, and fails when none does any more.
"""

from __future__ import annotations

import re
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from millstream_kafka.batch import iter_batches
from millstream_kafka.protocol import api_versions, create_topics, list_offsets, metadata
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.schema import ZERO_UUID, Struct

from .java import KAFKA_VERSION, PEER_VERSION
from .wire import Wire

Plain = Any
CLOSED = "the connection is closed"
MISSING = "nothing"
IDENTIFYING = (
    *(
        "name",
        "topic",
        "group_id",
        "resource_type",
        "resource_name",
        "key",
        "api_key",
        "broker_id",
        "node_id",
    ),
    *("partition_index", "partition", "partition_id", "index", "member_id", "user", "entity_type"),
    "mechanism",
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=')[\w-]{22}(?=')")
_RANGE = re.compile(r"\[-?\d{10,}, -?\d{10,}\]")
A_MINUTE_MS = 60_000
IS_THE_PEER = KAFKA_VERSION == PEER_VERSION


class Its(NamedTuple):
    """In a request: a value that this peer returned earlier, stored by ``keep`` under this name."""

    name: str


class Answers(NamedTuple):
    """The responses to one request in its highest version, not normalised."""

    ours: Plain
    kafka: Plain


class Peer:
    """One of the two brokers, with a connection that reconnects when the peer closes it."""

    def __init__(self, name: str, bootstrap: str, source: str = "") -> None:
        """`source`: see `Wire`."""
        self.name = name
        self.source = source
        self.bootstrap = bootstrap
        self.port = int(bootstrap.rsplit(":", 1)[1])
        self.kept: dict[str, Any] = {}
        self._wire: Wire | None = None
        listed = self.call(api_versions.API, 0, api_versions.ApiVersionsRequest())
        self.versions = {
            each["api_key"]: (each["min_version"], each["max_version"]) for each in listed["api_keys"]
        }

    @property
    def wire(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(self.bootstrap, source=self.source)
        return self._wire

    def disconnect(self) -> None:
        if self._wire is not None:
            self._wire.socket.close()
            self._wire = None

    def call(self, api: Api[Any, Any], version: int, request: Struct) -> Plain:
        return self.frame(
            self.wire.frame(api, version, request), lambda: plain(self.wire.receive(), api, version)
        )

    def frame(self, frame: bytes, receive: Callable[[], Plain] | None = None) -> Plain:
        """The response to these bytes; ``CLOSED`` if the peer closes the connection."""
        try:
            self.wire.socket.sendall(frame)
            return receive() if receive is not None else self.wire.receive_frame()
        except (EOFError, ConnectionError):
            self.disconnect()
            return CLOSED
        except TimeoutError:
            self.disconnect()
            raise AssertionError(f"{self.name} does not answer") from None

    def normal(self, value: Plain, name: str = "") -> Plain:
        """A peer's response without the fields that must differ."""
        if isinstance(value, dict):
            return {key: self.normal(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self.normal(each, name) for each in value]
        for kept, its in self.kept.items():
            if value != ZERO_UUID and value == its and type(value) is type(its):
                return f"<{kept}>"
        if isinstance(value, bytes) and name == "records":
            return b"".join(value[at : at + header.size] for at, header in iter_batches(value))
        if isinstance(value, uuid.UUID):
            return value if value == ZERO_UUID else "<id>"
        if isinstance(value, str):
            if name in ("cluster_id", "log_dir"):
                return f"<{name}>" if value else value
            return _RANGE.sub("[<from>, <to>]", _UUID.sub("<id>", value))
        if isinstance(value, int) and not isinstance(value, bool):
            return self._normal_number(value, name)
        return value

    def _normal_number(self, value: int, name: str) -> Plain:
        if name == "port" and value == self.port:
            return "<port>"
        if name == "producer_id" and value >= 0:  # Kafka's first one is 0
            return "<producer_id>"
        if name in ("session_id", "total_bytes", "usable_bytes") and value > 0:
            return f"<{name}>"
        if name.endswith(("_ms", "timestamp")) and abs(value - time.time() * 1000) < A_MINUTE_MS:
            return "<now>"
        return value


class Beside:
    """Millstream beside Apache Kafka."""

    def __init__(self, ours: str, kafka: str, source: str = "") -> None:
        """`source`: see `Wire`."""
        self.ours = Peer("Millstream", ours, source)
        self.kafka = Peer("Kafka", kafka, source)
        self.peers = (self.ours, self.kafka)

    def close(self) -> None:
        for peer in self.peers:
            peer.disconnect()

    def versions(self, api: Api[Any, Any]) -> range:
        """Versions that both brokers advertise and our codec supports."""
        ranges = [*(peer.versions[api.key] for peer in self.peers), api.served]
        return range(max(low for low, _ in ranges), min(high for _, high in ranges) + 1)

    def _require(self, api: Api[Any, Any], versions: Iterable[int]) -> None:
        """Skip the test if this release of Kafka, older than the tests, does not serve these versions."""
        low, high = self.kafka.versions.get(api.key, (0, -1))
        missing = [version for version in versions if not low <= version <= high]
        if missing and not IS_THE_PEER:
            pytest.skip(f"Kafka {KAFKA_VERSION} does not serve {api.name} v{missing[0]}")

    def same(
        self,
        api: Api[Any, Any],
        versions: Iterable[int] | None = None,
        *,
        but: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answers:
        """Send to both. AssertionError lists every field that differs and is not in ``but``."""
        allowed = dict(but or {})
        problems: list[str] = []
        differed: set[str] = set()
        answers = Answers(None, None)
        versions = self.versions(api) if versions is None else list(versions)
        self._require(api, versions)
        for version in versions:
            ours, kafka = (
                peer.call(api, version, build(api.request, fields, peer, version)) for peer in self.peers
            )
            answers = Answers(ours, kafka)
            for path, mine, theirs in differences(self.ours.normal(ours), self.kafka.normal(kafka)):
                forms = (path, re.sub(r"\[.*?\]", "", path))
                reasons = {field for field in allowed if any(field in form for form in forms)}
                differed |= reasons
                says_more = path.endswith("error_message") and isinstance(mine, str) and theirs in (None, "")
                if (
                    not reasons
                    and not says_more
                    and (IS_THE_PEER or not _is_of_a_release(path, mine, theirs))
                ):
                    what = f"{api.name} v{version} {path}"
                    problems.append(f"{what}: ours {_short(mine)}, Kafka's {_short(theirs)}")
        if IS_THE_PEER:
            problems += [f"{api.name} {field}: no longer differs" for field in allowed.keys() - differed]
        assert not problems, "\n" + "\n".join(problems)
        return answers

    def until(
        self, holds: Callable[[Plain], object], api: Api[Any, Any], version: int, **fields: Any
    ) -> Answers:
        """Send until ``holds`` accepts the response: Kafka responds before its broker has applied a change."""
        answers = []
        self._require(api, [version])
        for peer in self.peers:
            deadline = time.monotonic() + 15
            while not holds(answer := peer.call(api, version, build(api.request, fields, peer, version))):
                assert time.monotonic() < deadline, f"{peer.name}: {answer}"
                time.sleep(0.01)
            answers.append(answer)
        return Answers(*answers)

    def create(self, *names: str, partitions: int = 1, **config: str) -> None:
        """Create topics on both and wait for them. Their ids are kept as ``id of NAME``; _ in keys stands for a dot."""
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        topics = [
            {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
            for name in names
        ]
        for answer in self.ask(create_topics.API, [7], topics=topics, timeout_ms=10_000)[0]:
            assert [each["error_message"] for each in answer["topics"]] == [None] * len(names)
        self.until_known(*names)
        ends = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        self.until(
            lambda answer: (
                not any(one["error_code"] for each in answer["topics"] for one in each["partitions"])
            ),
            list_offsets.API,
            7,
            replica_id=-1,
            topics=[{"name": name, "partitions": ends} for name in names],
        )

    def until_known(self, *names: str, partitions: int = 1) -> None:
        """Wait until both return the topics with at least that many partitions."""
        found = self.until(
            lambda answer: all(len(each["partitions"]) >= partitions for each in answer["topics"]),
            metadata.API,
            12,
            topics=[{"name": name} for name in names],
            allow_auto_topic_creation=False,
        )
        for name in names:
            for peer, answer in zip(self.peers, found, strict=True):
                peer.kept[f"id of {name}"] = _named(answer["topics"], name)["topic_id"]

    def ask(self, api: Api[Any, Any], versions: Iterable[int] | None = None, **fields: Any) -> list[Answers]:
        """Send to both without comparing."""
        return [
            Answers(
                *(peer.call(api, version, build(api.request, fields, peer, version)) for peer in self.peers)
            )
            for version in (self.versions(api) if versions is None else versions)
        ]

    def keep(self, name: str, answers: Answers, of: Callable[[Plain], Any]) -> None:
        """Store each peer's own name for the same thing."""
        for peer, answer in zip(self.peers, answers, strict=True):
            peer.kept[name] = of(answer)


def build(kind: type[Struct], fields: Mapping[str, Any], peer: Peer, version: int) -> Any:
    """A struct from its fields."""
    declared = dict(kind.FIELDS)
    assert fields.keys() <= declared.keys(), (
        f"{kind.__name__} has {list(declared)}, not all of {list(fields)}"
    )

    def value_of(value: Any, nested: type[Struct] | None) -> Any:
        if isinstance(value, Its):
            return peer.kept[value.name]
        if isinstance(value, str):
            return value.replace("{v}", str(version))
        if isinstance(value, list):
            return [value_of(each, nested) for each in value]
        if isinstance(value, dict):
            assert nested is not None
            return build(nested, value, peer, version)
        return value

    given = {name: value_of(value, declared[name].struct) for name, value in fields.items()}
    return kind(**given)


def plain(value: Any, api: Api[Any, Any], version: int) -> Plain:
    """A decoded response as dicts and lists of the fields that the version carries."""
    if isinstance(value, Struct):
        return {
            name: plain(getattr(value, name), api, version)
            for name, wire in type(value).FIELDS
            if wire.in_version(version) and (wire.tag is None or api.is_flexible(version))
        }
    if isinstance(value, list):
        return [plain(each, api, version) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def differences(ours: Plain, kafka: Plain, path: str = "") -> Iterable[tuple[str, Plain, Plain]]:
    """Path, our value and Kafka's of every field that differs; elements of arrays are matched by their keys."""
    if isinstance(ours, list) and isinstance(kafka, list):
        mine, theirs = _by_identity(ours), _by_identity(kafka)
        for key in sorted(mine.keys() | theirs.keys()):
            yield from differences(mine.get(key, MISSING), theirs.get(key, MISSING), f"{path}[{key}]")
    elif isinstance(ours, dict) and isinstance(kafka, dict):
        for name in ours:
            yield from differences(ours[name], kafka[name], f"{path}.{name}" if path else name)
    elif ours != kafka:
        yield path, ours, kafka


def _by_identity(values: list[Plain]) -> dict[str, Plain]:
    named: dict[str, Plain] = {}
    for index, value in enumerate(values):
        parts = (
            [str(value[name]) for name in IDENTIFYING if name in value]
            if isinstance(value, dict)
            else [str(index)]
        )
        key = " ".join(parts)
        named[key if key not in named else f"{key} ({index})"] = value
    return named


def _is_of_a_release(path: str, ours: Plain, kafka: Plain) -> bool:
    """Whether releases of Kafka differ in this: an error's words, the configuration keys that there are."""
    return path.endswith("error_message") or (MISSING in (ours, kafka) and "configs[" in path)


def _named(values: list[Plain], name: str) -> Plain:
    return next(each for each in values if each["name"] == name)


def raw_request(key: int, version: int, body: bytes = b"", *, correlation_id: int = 7) -> bytes:
    """A frame with a header of version 1, whatever the API."""
    head = struct.pack(">hhih", key, version, correlation_id, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def _short(value: Plain) -> str:
    text = repr(value)
    return text if len(text) < 1500 else f"{text[:1500]}… ({len(text)})"
