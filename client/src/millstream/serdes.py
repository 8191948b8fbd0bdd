"""Convert keys and values to bytes and back: JSON, text, Avro, msgspec, and the user's callables.

A Serde (Kafka's word) has both directions. A plain callable suffices for one: a producer needs one from a value
to bytes, a stream one from bytes to a value. They never get None, which means a record without a value (a tombstone).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from millstream.errors import BadInput, MissingExtra

T = TypeVar("T")


@runtime_checkable
class Serde(Protocol[T]):
    """Both directions. Their exceptions become NotSerializable or PoisonedMessage, with the same text."""

    def serialize(self, value: T, /) -> bytes:
        """The bytes of a value, which is never None. Any exception makes `Producer.send` raise NotSerializable."""
        ...

    def deserialize(self, data: bytes, /) -> T:
        """The value of these bytes. Any exception makes reading the message's part raise PoisonedMessage."""
        ...


Serializer: TypeAlias = Serde[Any] | Callable[[Any], bytes]
Deserializer: TypeAlias = Serde[Any] | Callable[[bytes], Any]


def serializer(given: Serializer | None) -> Callable[[Any], bytes] | None:
    """The function to bytes; BadInput for anything but a Serde or a callable."""
    if given is None:
        return None
    return _callable("serializer", given, "serialize")


def deserializer(given: Deserializer | None) -> Callable[[bytes], Any] | None:
    """The function from bytes; BadInput for anything but a Serde or a callable."""
    if given is None:
        return None
    return _callable("deserializer", given, "deserialize")


def _callable(what: str, given: Any, method: str) -> Callable[[Any], Any]:
    if isinstance(given, type) and hasattr(given, method):
        raise BadInput(
            f"{what}: the class {given.__name__} is not allowed", f"give an object, {given.__name__}(…)"
        )
    found = getattr(given, method, given)
    if not callable(found):
        raise BadInput(f"{what}: {found!r} is not allowed", "give a Serde, such as Json(), or a callable")
    return found  # type: ignore[no-any-return]


class Text:
    """Text in one of Python's encodings, UTF-8 by default."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def serialize(self, value: str, /) -> bytes:
        """The text in ``encoding``. UnicodeEncodeError for a character that the encoding lacks."""
        return value.encode(self.encoding)

    def deserialize(self, data: bytes, /) -> str:
        """The text. UnicodeDecodeError for bytes that are not in ``encoding``."""
        return data.decode(self.encoding)


class Json:
    """JSON in UTF-8, without spaces. NaN and infinities, which JSON does not have, are errors in `serialize`."""

    def serialize(self, value: Any, /) -> bytes:
        """JSON of dicts, lists, tuples, str, int, float, bool and None, in any nesting; keys become strings.

        TypeError for other types, ValueError for NaN, an infinity, or a value that contains itself.
        """
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def deserialize(self, data: bytes, /) -> Any:
        """Dicts, lists, str, int, float, bool or None. ValueError for data that is not one JSON document."""
        return json.loads(data)


class Msgspec:
    """msgspec's JSON or MessagePack, checked against ``type`` when read."""

    def __init__(self, type: Any = Any, *, format: str = "json") -> None:
        if format not in ("json", "msgpack"):
            raise BadInput(f'format: "{format}" is not allowed', "write json or msgpack")
        import msgspec

        codec: Any = msgspec.json if format == "json" else msgspec.msgpack
        self.serialize: Callable[[Any], bytes] = codec.Encoder().encode
        self.deserialize: Callable[[bytes], Any] = codec.Decoder(type).decode


class Avro:
    """Avro's single-object encoding: two bytes, the writer schema's fingerprint, the data (extra ``millstream[avro]``).

    ``schema`` is the schema for writing and of the values returned. ``writers`` are older schemas whose records can be
    read, too; Avro's rules of schema resolution apply. A record of any other schema cannot be deserialized. Source:
    Avro 1.12, "Single-object encoding".
    """

    MARKER = b"\xc3\x01"

    def __init__(self, schema: Mapping[str, Any], *, writers: Iterable[Mapping[str, Any]] = ()) -> None:
        try:
            import fastavro
        except ImportError:
            raise MissingExtra("avro is not installed", "pip install 'millstream[avro]'") from None
        self._library: Any = fastavro
        try:
            self._schema: Any = fastavro.parse_schema(dict(schema))
            self._prefix = self._head(self._schema)
            self._writers: dict[bytes, Any] = {self._prefix: self._schema}
            for writer in writers:
                parsed: Any = fastavro.parse_schema(dict(writer))
                self._writers[self._head(parsed)] = parsed
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            raise BadInput(f"schema: {error}", "give an Avro schema") from None

    def _head(self, schema: Any) -> bytes:
        canonical = self._library.schema.to_parsing_canonical_form(schema)
        # fastavro prints the fingerprint's bytes as they are stored, little-endian.
        return self.MARKER + bytes.fromhex(self._library.schema.fingerprint(canonical, "CRC-64-AVRO"))

    def serialize(self, value: Any, /) -> bytes:
        """The value in ``schema``; a record is a dict by field name.

        TypeError, ValueError or OverflowError for a value that does not fit.
        """
        out = io.BytesIO()
        out.write(self._prefix)
        self._library.schemaless_writer(out, self._schema, value)
        return out.getvalue()

    def deserialize(self, data: bytes, /) -> Any:
        """The value as ``schema`` describes it: a record is a dict by field name.

        ValueError for a fingerprint of an unknown schema, or for bytes after the data; fastavro's error for other bytes
        that do not fit the writer's schema.
        """
        writer = self._writers.get(data[: len(self._prefix)])
        if writer is None:
            raise ValueError("it was not written with a schema that this reader knows")
        content = io.BytesIO(data)
        content.seek(len(self._prefix))
        found = self._library.schemaless_reader(content, writer, self._schema)
        if content.tell() != len(data):
            raise ValueError("bytes follow the Avro data")
        return found
