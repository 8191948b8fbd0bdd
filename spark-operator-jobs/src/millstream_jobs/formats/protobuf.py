"""Values in Protocol Buffers: messages of one type, by the descriptors that protoc wrote for it and its imports.

Google's own parser reads them, in Spark's Python workers: Spark's `from_protobuf` is in a jar that not every image has.
The workers give times as microseconds, since Python's own times cost more than the parser. Columns are the message's
fields:

    double, float, bool, string, bytes      DOUBLE, FLOAT, BOOLEAN, STRING, BINARY
    int32, sint32, sfixed32                 INT
    int64, sint64, sfixed64, uint32, fixed32    BIGINT
    uint64, fixed64                         DECIMAL(20, 0)
    enum                                    STRING: the value's name, or its number if it has none
    message, repeated, map                  STRUCT, ARRAY, MAP
    google.protobuf.Timestamp               TIMESTAMP, in whole microseconds
    google.protobuf.Int64Value and the like the type that they wrap

A field that is not set is null if the type can tell (`optional`, `oneof`, messages); otherwise it has its default. A
message type that contains itself has no such columns and is not allowed.

`_corrupt_record` is BINARY: a value that is no such message, or has a time outside the years 1 to 9999. Protobuf has no
checksum and skips fields that it does not know, so other bytes may happen to be a message.

Source: protobuf.dev, "Encoding" and "ProtoJSON Format" (well-known types).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream_jobs.formats.parsed import Parsed, check_names
from millstream_jobs.run import BadRun
from millstream_jobs.value import Value

Convert = Callable[[Any], Any]
TIMESTAMP = "google.protobuf.Timestamp"
FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, in seconds since 1970."""
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
UNSIGNED_64 = DecimalType(20, 0)
KINDS: dict[int, DataType] = {
    FieldDescriptor.TYPE_DOUBLE: DoubleType(),
    FieldDescriptor.TYPE_FLOAT: FloatType(),
    FieldDescriptor.TYPE_BOOL: BooleanType(),
    FieldDescriptor.TYPE_STRING: StringType(),
    FieldDescriptor.TYPE_BYTES: BinaryType(),
    FieldDescriptor.TYPE_ENUM: StringType(),
    FieldDescriptor.TYPE_INT32: IntegerType(),
    FieldDescriptor.TYPE_SINT32: IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: IntegerType(),
    FieldDescriptor.TYPE_INT64: LongType(),
    FieldDescriptor.TYPE_SINT64: LongType(),
    FieldDescriptor.TYPE_SFIXED64: LongType(),
    FieldDescriptor.TYPE_UINT32: LongType(),
    FieldDescriptor.TYPE_FIXED32: LongType(),
    FieldDescriptor.TYPE_UINT64: UNSIGNED_64,
    FieldDescriptor.TYPE_FIXED64: UNSIGNED_64,
}


def messages(source: DataFrame, value: Value) -> Parsed:
    """Values of one message type; BadRun for descriptors that do not describe it, or a type without columns."""
    descriptors, name = value.descriptor_set, value.message
    schema = _struct(message_type(descriptors, name).DESCRIPTOR, ())
    check_names((field.name for field in schema), f"value.message: {name}")

    # PySpark would read the hints of a function, and warns about a union such as `bytes | None`; a lambda has none.
    read = F.udf(lambda sent: None if sent is None else row(descriptors, name, bytes(sent)), _sent(schema))
    parsed = source.withColumn("parsed", read("value"))
    columns = {
        field.name: _received(F.col("parsed").getField(field.name), field.dataType) for field in schema
    }
    return Parsed(parsed, schema, columns, F.when(F.col("parsed").isNull(), F.col("value")))


def _sent(kind: Any) -> Any:
    """The type in which workers return it: times as microseconds since 1970."""
    if isinstance(kind, TimestampType):
        return LongType()
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _sent(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_sent(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _sent(kind.valueType))
    return kind


def _received(column: Column, kind: DataType) -> Column:
    """A column of this type, from the workers' values."""
    if _sent(kind) == kind:
        return column
    if isinstance(kind, StructType):
        fields = [_received(column.getField(field.name), field.dataType).alias(field.name) for field in kind]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        single = kind.elementType
        return F.transform(column, lambda item: _received(item, single))
    if isinstance(kind, MapType):
        content = kind.valueType
        return F.transform_values(column, lambda _, item: _received(item, content))
    return F.timestamp_micros(column)


def row(descriptors: str, name: str, value: bytes) -> tuple[Any, ...] | None:
    """The message's fields in the order of its columns, as workers return them; None for any other value."""
    kind, convert = _reader(descriptors, name)
    try:
        found: tuple[Any, ...] = convert(kind.FromString(value))
    except (DecodeError, ValueError, OverflowError):
        return None
    return found


@cache
def _reader(descriptors: str, name: str) -> tuple[type[Message], Convert]:
    kind = message_type(descriptors, name)
    return kind, _message(kind.DESCRIPTOR)


def message_type(descriptors: str, name: str) -> type[Message]:
    """The type of that name in a FileDescriptorSet in base64. Raises BadRun."""
    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(base64.b64decode(descriptors, validate=True))
    except (binascii.Error, DecodeError):
        raise BadRun(
            "value.descriptorSet: is not allowed: it must be the base64 of what"
            " `protoc --include_imports --descriptor_set_out=FILE` writes"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    names = [f"{file.package}.{added}".strip(".") for file in found.file for added in _added(pool, file)]
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        raise BadRun(
            f'value.message: "{name}" is not allowed: value.descriptorSet has no such message:'
            f" {', '.join(sorted(names)) or 'it has none'}"
        ) from None


def _added(pool: descriptor_pool.DescriptorPool, file: descriptor_pb2.FileDescriptorProto) -> list[str]:
    """The message types of a file; BadRun if it needs files that the pool does not have, or is not valid."""
    try:
        pool.Add(file)
        return list(pool.FindFileByName(file.name).message_types_by_name)
    except TypeError as error:
        raise BadRun(
            f"value.descriptorSet: {file.name} cannot be used: {error}: write the set with --include_imports"
        ) from None


def _struct(kind: Any, within: tuple[str, ...]) -> StructType:
    if kind.full_name in within:
        raise BadRun(
            f"value.message: {within[0]} is not allowed: {kind.full_name} contains itself, so it has no columns"
        )
    within = (*within, kind.full_name)
    return StructType([StructField(field.name, _type(field, within)) for field in kind.fields])


def _type(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    if (entry := _entry(field)) is not None:
        key, value = entry
        return MapType(_single(key, within), _single(value, within))
    single = _single(field, within)
    return ArrayType(single) if field.is_repeated else single


def _single(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    kind = field.message_type
    if kind is None:
        return KINDS[field.type]
    if kind.full_name == TIMESTAMP:
        return TimestampType()
    if kind.full_name in WRAPPERS:
        return KINDS[kind.fields_by_name["value"].type]
    return _struct(kind, within)


def _entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """Key and value of a map; None for other fields."""
    kind = field.message_type
    if kind is None or not kind.GetOptions().map_entry:
        return None
    return kind.fields_by_name["key"], kind.fields_by_name["value"]


def _message(kind: Any) -> Convert:
    """Turns a message into the row of its type."""
    fields = [(field.name, field.has_presence, _field(field)) for field in kind.fields]

    def convert(message: Any) -> tuple[Any, ...]:
        return tuple(
            [
                None if can_miss and not message.HasField(name) else one(getattr(message, name))
                for name, can_miss, one in fields
            ]
        )

    return convert


def _field(field: FieldDescriptor) -> Convert:
    if (entry := _entry(field)) is not None:
        key, content = (_value(field) for field in entry)
        return lambda items: {key(name): content(items[name]) for name in items}
    single = _value(field)
    if field.is_repeated:
        return lambda items: [single(item) for item in items]
    return single


def _value(field: FieldDescriptor) -> Convert:
    kind = field.message_type
    if kind is None:
        return _scalar(field)
    if kind.full_name == TIMESTAMP:
        return _microseconds
    if kind.full_name in WRAPPERS:
        wrapped = _scalar(kind.fields_by_name["value"])
        return lambda wrapper: wrapped(wrapper.value)
    return _message(kind)


def _microseconds(time: Any) -> int:
    """ValueError outside the years 1 to 9999."""
    seconds, nanos = time.seconds, time.nanos
    if not (FIRST_S <= seconds <= LAST_S and 0 <= nanos < 1_000_000_000):
        raise ValueError(seconds)
    return int(seconds * 1_000_000 + nanos // 1000)


def _scalar(field: FieldDescriptor) -> Convert:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if KINDS[field.type] is UNSIGNED_64:
        return Decimal
    return lambda value: value
