"""Our codec against others, byte for byte: kio, and kafka-python 3, which is built on Kafka's own definitions.

For every API, version and side, and any value of a message: our bytes equal theirs, and from theirs we read the
original value. kio lacks the versions that Kafka 4.3 has dropped; kafka-python has them all.
Messages between brokers are compared with Apache Kafka's own classes, those of 3.9, from Spark's client.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import io
import json
import os
import types
import typing
import uuid
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import kio.serial
import pytest
from hypothesis import HealthCheck, given, settings
from kio.schema.errors import ErrorCode

from millstream_harness.java import SPARK_JARS, client_classpath, fetched, java_command, kafka_jars, run
from millstream_harness.messages import VERSIONS, messages
from millstream_harness.protocol_document import OWN, ZOOKEEPER
from millstream_kafka.protocol import api_versions, consumer_group_heartbeat, delete_groups
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.schema import ZERO_UUID, Struct

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

AnyApi = Api[Any, Any]

MESSAGES = Path(__file__).parent / "java" / "BrokerMessages.java"
BETWEEN_BROKERS = [found for found in VERSIONS if found[0].name in ZOOKEEPER]
CLIENTS = [found for found in VERSIONS if found[0].name not in {*ZOOKEEPER, *OWN}]
OF_KAFKA_4_4 = [(api_versions.API, 5), (delete_groups.API, 3)]
"""Neither of the other implementations has them yet: `test_protocol_newest` has their bytes."""
NULL = -1
"""The only value that our codec sends for a nullable struct."""

SOME = settings(
    max_examples=8,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


OWN_TAGS = 10_000
"""Tagged fields from this one on are our own, and other implementations pass over them."""


def is_own(wire: Any) -> bool:
    return wire.tag is not None and wire.tag >= OWN_TAGS


def of_kafka(value: Any) -> Any:
    """The message without values of our own fields."""
    for name, wire in type(value).FIELDS:
        if is_own(wire):
            setattr(value, name, wire.default)
        elif wire.struct is not None and (found := getattr(value, name)) is not None:
            for element in found if wire.is_array else [found]:
                of_kafka(element)
    return value


def their_name(name: str, names: Collection[str]) -> str:
    """Their name of a field: AddPartitionsToTxn has two of some, for clients and for brokers; kio leaves units out."""
    ways = (name, f"v3_and_below_{name}", f"{name}_v3_and_below", name.removesuffix("_ms"))
    return next((way for way in ways if way in names), name)


def present(value: Struct, version: int) -> list[tuple[str, Any, Any]]:
    """The fields that a version carries and that are not absent tagged structs: name, declaration, value."""
    found = []
    for name, wire in type(value).FIELDS:
        field = getattr(value, name)
        if (
            wire.in_version(version)
            and not is_own(wire)
            and not (wire.tag is not None and wire.struct and field is None)
        ):
            found.append((name, wire, field))
    return found


# --- kio ---


def kio_class(api: AnyApi, version: int, side: str) -> Any:
    module = api.request.__module__.rsplit(".", 1)[1]
    loaded = importlib.import_module(f"kio.schema.{module}.v{version}.{side}")
    return getattr(loaded, f"{api.name}{side.capitalize()}")


def kio_has(api: AnyApi, version: int) -> bool:
    try:
        kio_class(api, version, "request")
    except ModuleNotFoundError:
        return False
    return True


def entity_in(hint: Any) -> Any:
    """The dataclass in an annotation such as ``tuple[X, ...] | None``."""
    if dataclasses.is_dataclass(hint):
        return hint
    for argument in typing.get_args(hint):
        if found := entity_in(argument):
            return found
    return None


def kio_scalar(value: Any, kafka_type: str) -> Any:
    if kafka_type == "uuid":
        return value if value.int else None
    if kafka_type == "error_code":
        return ErrorCode(value)
    if kafka_type.startswith("timedelta"):
        return timedelta(milliseconds=value)
    if kafka_type == "datetime_i64":
        return None if value == -1 else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)
    return value


def to_kio(value: Struct, version: int, entity: Any) -> Any:
    """The same message as kio's, whose fields have the same order and names."""
    hints = typing.get_type_hints(entity)
    theirs = {field.name: field for field in dataclasses.fields(entity)}
    arguments = {}
    for name, wire, ours in present(value, version):
        known = their_name(name, theirs)
        nested = entity_in(hints[known])
        converted = ours
        if nested is not None and wire.struct is None:
            assert ours == NULL
            converted = None
        elif nested is not None and ours is not None:
            if wire.is_array:
                converted = tuple(to_kio(element, version, nested) for element in ours)
            else:
                converted = to_kio(ours, version, nested)
        elif wire.is_array and ours is not None:
            converted = tuple(kio_scalar(element, wire.kind) for element in ours)
        elif ours is not None:
            converted = kio_scalar(ours, theirs[known].metadata["kafka_type"])
        arguments[known] = converted
    carried = [name for name, wire in type(value).FIELDS if wire.in_version(version) and not is_own(wire)]
    assert [their_name(name, theirs) for name in carried] == list(theirs)
    return entity(**arguments)


def kio_bytes(message: Any) -> bytes:
    buffer = io.BytesIO()
    kio.serial.entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


@pytest.mark.parametrize("side", ["request", "response"])
@pytest.mark.parametrize(
    ("api", "version"), [found for found in CLIENTS if kio_has(*found)], ids=lambda value: str(value)
)
def test_kio_writes_and_reads_the_same(api: AnyApi, version: int, side: str) -> None:
    theirs = kio_class(api, version, side)
    struct = api.request if side == "request" else api.response
    encode = api.encode_request if side == "request" else api.encode_response
    decode = api.decode_request if side == "request" else api.decode_response

    @SOME
    @given(messages(struct, version))
    def agrees(message: Any) -> None:
        if api is consumer_group_heartbeat.API and side == "response":
            message.assignment = NULL
        expected = to_kio(of_kafka(message), version, theirs)
        encoded = encode(version, message)
        assert encoded == kio_bytes(expected)
        read = kio.serial.entity_reader(theirs)(encoded, 0)
        assert (read[0], read[1]) == (expected, len(encoded))
        assert decode(version, encoded) == message

    agrees()


# --- kafka-python ---

_KAFKA_PYTHON: list[types.ModuleType] = [
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
]


def kafka_python_class(name: str) -> Any:
    return next(getattr(module, name) for module in _KAFKA_PYTHON if hasattr(module, name))


def alias(name: str, container: Any) -> str:
    """kafka-python has one name for most sets of authorized operations, and a set of bits instead of Kafka's int32.

    In DescribeTopicPartitions it has Kafka's name and type.
    """
    renamed = name in ("cluster_authorized_operations", "topic_authorized_operations")
    fields = container._struct.fields
    return "authorized_operations" if renamed and name not in fields else their_name(name, fields)


def bits(value: int) -> set[int] | None:
    return None if value == -(2**31) else {bit for bit in range(32) if value >> bit & 1}


def number(value: set[int] | None) -> int:
    unsigned = 2**31 if value is None else sum(1 << bit for bit in value)
    return unsigned - 2**32 if unsigned >= 2**31 else unsigned


def to_kafka_python(value: Struct, version: int, container: Any) -> Any:
    arguments = {}
    for name, wire, ours in present(value, version):
        if wire.tag is not None and ours == ([] if wire.is_array else wire.default):
            continue
        converted = ours
        if wire.struct is not None and ours is not None:
            nested = container._struct.fields[alias(name, container)].data_class
            if wire.is_array:
                converted = [to_kafka_python(element, version, nested) for element in ours]
            else:
                converted = to_kafka_python(ours, version, nested)
        if wire.kind == "int32" and alias(name, container) == "authorized_operations":
            converted = bits(ours)
        arguments[alias(name, container)] = converted
    return container(version=version, **arguments)


def from_kafka_python(container: Any, version: int, struct: type[Struct]) -> Struct:
    arguments = {}
    for name, wire in struct.FIELDS:
        if not wire.in_version(version) or is_own(wire):
            continue
        theirs = getattr(container, alias(name, container))
        if wire.struct is not None and theirs is not None:
            if wire.is_array:
                theirs = [from_kafka_python(element, version, wire.struct) for element in theirs]
            else:
                theirs = from_kafka_python(theirs, version, wire.struct)
        if wire.kind == "int32" and alias(name, container) == "authorized_operations":
            theirs = number(theirs)
        if wire.kind == "uuid" and theirs is None:
            theirs = ZERO_UUID
        arguments[name] = theirs
    return struct(**arguments)


KAFKA_PYTHONS = [
    found for found in CLIENTS if found[0] is not consumer_group_heartbeat.API and found not in OF_KAFKA_4_4
]
"""Only classic groups."""


@pytest.mark.parametrize("side", ["Request", "Response"])
@pytest.mark.parametrize(
    ("api", "version"), KAFKA_PYTHONS, ids=[f"{api.name}-v{version}" for api, version in KAFKA_PYTHONS]
)
def test_kafka_python_writes_and_reads_the_same(api: AnyApi, version: int, side: str) -> None:
    theirs = kafka_python_class(api.name + side)
    struct = api.request if side == "Request" else api.response
    encode = api.encode_request if side == "Request" else api.encode_response
    decode = api.decode_request if side == "Request" else api.decode_response

    @SOME
    @given(messages(struct, version))
    def agrees(message: Any) -> None:
        if api is api_versions.API and side == "Response":
            message.error_code = 0  # kafka-python reads any error as a v0 response
        expected = to_kafka_python(of_kafka(message), version, theirs)
        encoded = encode(version, message)
        assert encoded == bytes(expected.encode(version=version))
        assert from_kafka_python(theirs.decode(encoded, version=version), version, struct) == message
        assert decode(version, encoded) == message

    agrees()


def test_the_oracles_cover_what_kafka_still_has() -> None:
    """kio lacks only what Kafka 4 dropped."""
    lacking = {f"{api.name}-v{version}" for api, version in CLIENTS if not kio_has(api, version)}
    lacking -= {f"{api.name}-v{version}" for api, version in OF_KAFKA_4_4}
    assert lacking == {
        "CreateTopics-v0",
        "CreateTopics-v1",
        "DeleteTopics-v0",
        "DescribeConfigs-v0",
        "DescribeAcls-v0",
        "CreateAcls-v0",
        "DeleteAcls-v0",
    }


# --- Apache Kafka 3.9 ---


def kafka_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def as_kafkas_json(value: Any) -> Any:
    if isinstance(value, Struct):
        # A tagged field is ours: Kafka keeps it, but does not know its name.
        known = [name for name, wire in type(value).FIELDS if wire.tag is None]
        return {kafka_name(name): as_kafkas_json(getattr(value, name)) for name in known}
    if isinstance(value, list):
        return [as_kafkas_json(one) for one in value]
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
    return value


def made_up(api: AnyApi, version: int, side: str) -> list[tuple[str, bytes, Struct]]:
    """Some messages, each with Kafka's name for it and its bytes."""
    made: list[tuple[str, bytes, Struct]] = []
    encode = api.encode_request if side == "Request" else api.encode_response

    @settings(SOME, max_examples=25)
    @given(messages(api.request if side == "Request" else api.response, version))
    def make(message: Struct) -> None:
        made.append((f"{api.name}{side} {version}", encode(version, message), message))

    make()
    return made


def test_kafka_reads_and_writes_what_brokers_say_to_each_other(tmp_path: Path) -> None:
    made = [
        one for found in BETWEEN_BROKERS for side in ("Request", "Response") for one in made_up(*found, side)
    ]
    lines = tmp_path / "messages"
    lines.write_text("".join(f"{name} {encoded.hex()}\n" for name, encoded, _ in made))
    jackson = sorted((*fetched(SPARK_JARS).glob("jackson-*.jar"), *kafka_jars().glob("jackson-*.jar")))
    classpath = os.pathsep.join([client_classpath("3.9.1"), *map(str, jackson)])
    done = run(java_command(str(MESSAGES), str(lines), classpath=classpath))
    answers = done.stdout.rstrip("\n").split("\n")
    assert len(answers) == len(made) > 100
    for (_, encoded, message), answer in zip(made, answers, strict=True):
        written, _, json_text = answer.partition(" ")
        assert bytes.fromhex(written) == encoded
        assert json.loads(json_text) == as_kafkas_json(message)
