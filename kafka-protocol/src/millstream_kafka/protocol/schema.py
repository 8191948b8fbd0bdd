"""The notation for messages of Kafka's protocol: a class per struct, a line per field.

    class FetchPartition(Struct):
        partition: int = int32()
        current_leader_epoch: int = int32(since=9, default=-1)
        fetch_offset: int = int64()

A field helper names the wire type and takes the attributes of Kafka's message definitions:

    since, until   the versions that carry the field (inclusive); in others it keeps its default and is not written
    nullable       the first version in which it may be null
    default        the value in versions that do not carry it (Kafka's rule: 0, "", no elements, unless set otherwise)
    tag            its number as a tagged field (KIP-482): written only if it differs from the default

Differences from Kafka's generated classes: an absent tagged struct is ``None`` rather than a struct of
defaults, and a value set on a field that the version does not carry is dropped without an error.

Byte fields decode to memoryviews of the frame, so they cost no copy. Keeping one beyond the request keeps the
frame alive; copy it instead.

Structs work like slotted dataclasses (constructor, equality, repr), and type checkers treat them as such. But a
constructor is generated on its first call, because there are two hundred structs and the broker must start fast.

Wire format: https://kafka.apache.org/protocol and KIP-482 (flexible versions). ``compiler`` generates the functions
that read and write it, a pair per struct and version, on first use.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, TypeVar, dataclass_transform

ZERO_UUID: Final = uuid.UUID(int=0)
"""Kafka's null of a uuid."""
NEWEST: Final = 32767

Bytes: TypeAlias = bytes | bytearray | memoryview


class Sized(Protocol):
    """Record bytes stored elsewhere, such as a range of a segment file, and sent unchanged."""

    def __len__(self) -> int: ...


class Encoded:
    """Elements of an array, already encoded in the version of the message: their number and their bytes.

    It replaces the list in a field declared ``encodable``, so that data sent to many clients is encoded once.
    """

    __slots__ = ("count", "data")

    def __init__(self, count: int, data: bytes) -> None:
        self.count = count
        self.data = data

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class MalformedRequest(Exception):
    """The bytes violate the protocol; the message names the field and what is wrong with it."""


class EncodeError(ValueError):
    """A message cannot be written in the requested version; the message names the field."""


class TooManyElements(MalformedRequest):
    """The arrays of the message have more elements together than its reader allows."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field's declaration, for the compiler and for tests that generate messages."""

    kind: str
    """A name in ``compiler.FIXED``, or string, bytes, records, struct."""
    is_array: bool = False
    struct: type[Struct] | None = None
    since: int = 0
    until: int = NEWEST
    nullable: int | None = None
    tag: int | None = None
    default: Any = None
    encodable: bool = False
    """Whether an ``Encoded`` may replace the list."""

    def in_version(self, version: int) -> bool:
        return self.since <= version <= self.until

    def nullable_in(self, version: int) -> bool:
        return self.nullable is not None and version >= self.nullable


@dataclass_transform()
class _StructType(type):
    """Takes the declarations out of the class's body and turns them into slots."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _StructType:
        declared = {key: value for key, value in namespace.items() if isinstance(value, FieldType)}
        for key in declared:
            del namespace[key]
        namespace["__slots__"] = namespace["__match_args__"] = tuple(declared)
        namespace["FIELDS"] = tuple(declared.items())
        return super().__new__(mcs, name, bases, namespace)


class Struct(metaclass=_StructType):
    """The base of every message and every struct in one."""

    FIELDS: ClassVar[tuple[tuple[str, FieldType], ...]]
    """The wire fields in their order on the wire."""
    __match_args__: ClassVar[tuple[str, ...]]
    __hash__: ClassVar[None]  # type: ignore[assignment]

    if not TYPE_CHECKING:

        def __init__(self, *args: Any, **values: Any) -> None:
            cls = type(self)
            cls.__init__ = _constructor(cls)
            cls.__init__(self, *args, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({values})"


def _constructor(cls: type[Struct]) -> Any:
    """``__init__`` with a parameter per field, as ``@dataclass`` would generate it."""
    names: dict[str, Any] = {"EMPTY": object()}
    parameters, body = ["self"], ["pass"]
    for name, wire in cls.FIELDS:
        if isinstance(wire.default, list):
            parameters.append(f"{name}=EMPTY")
            body.append(f"self.{name} = [] if {name} is EMPTY else {name}")
        else:
            names[f"default_{name}"] = wire.default
            parameters.append(f"{name}=default_{name}")
            body.append(f"self.{name} = {name}")
    source = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body)
    exec(source, names)
    return names["__init__"]


M = TypeVar("M", bound=Struct)


def changed(message: M, **values: Any) -> M:
    """A copy with some fields changed, as with ``dataclasses.replace``."""
    return type(message)(**{name: getattr(message, name) for name in message.__match_args__} | values)


Declaration: TypeAlias = Callable[..., Any]
"""Declares a field by FieldType's keywords; for type checkers it has the type of the field's annotation."""

int8: Declaration = partial(FieldType, "int8", default=0)
int16: Declaration = partial(FieldType, "int16", default=0)
int32: Declaration = partial(FieldType, "int32", default=0)
int64: Declaration = partial(FieldType, "int64", default=0)
boolean: Declaration = partial(FieldType, "bool", default=False)
float64: Declaration = partial(FieldType, "float64", default=0.0)
uuid_: Declaration = partial(FieldType, "uuid", default=ZERO_UUID)
string: Declaration = partial(FieldType, "string", default="")
bytes_: Declaration = partial(FieldType, "bytes", default=b"")
records: Declaration = partial(FieldType, "records", nullable=0)
"""Record batches: plain bytes to the protocol, but encoded without a copy."""


def array(
    element: type[Struct] | str,
    *,
    since: int = 0,
    until: int = NEWEST,
    nullable: int | None = None,
    tag: int | None = None,
    default: tuple[()] | None = (),
    encodable: bool = False,
) -> Any:
    """A list of structs, or of a kind by its name: ``array("int32")``."""
    kind, nested = (element, None) if isinstance(element, str) else ("struct", element)
    empty: list[Any] | None = None if default is None else []
    return FieldType(kind, True, nested, since, until, nullable, tag, empty, encodable)


def struct(
    element: type[Struct],
    *,
    since: int = 0,
    until: int = NEWEST,
    nullable: int | None = None,
    tag: int | None = None,
) -> Any:
    """A struct that may be absent, which is ``None``: a tagged or a nullable one."""
    assert (tag is None) != (nullable is None)
    return FieldType("struct", False, element, since, until, nullable, tag)


Encoder: TypeAlias = Callable[[Any, list[Any]], None]
Decoder: TypeAlias = Callable[[memoryview, int], Any]
