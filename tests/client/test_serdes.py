"""Serdes: their bytes and values, compared with other implementations."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import fastavro
import msgspec
import pytest

import millstream
from millstream.errors import BadInput, MissingExtra
from millstream.serdes import deserializer, serializer

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "number", "type": "string"}, {"name": "delay", "type": "int", "default": 0}],
}
OLDER: dict[str, Any] = {"type": "record", "name": "Flight", "fields": [{"name": "number", "type": "string"}]}


class Flight(msgspec.Struct):
    number: str
    delay: int = 0


def test_json_and_text() -> None:
    assert millstream.Json().serialize({"a": "ü", "b": [1, None]}) == '{"a":"ü","b":[1,null]}'.encode()
    assert millstream.Json().deserialize(b'{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError):
        millstream.Json().serialize(float("nan"))
    assert millstream.Text().deserialize(millstream.Text().serialize("grüße")) == "grüße"
    assert millstream.Text("latin-1").serialize("ü") == b"\xfc"


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_msgspec(format: str) -> None:
    serde = millstream.Msgspec(Flight, format=format)
    data = serde.serialize(Flight("UA1545", 3))
    if format == "json":
        assert json.loads(data) == {"number": "UA1545", "delay": 3}
    assert serde.deserialize(data) == Flight("UA1545", 3)
    with pytest.raises(msgspec.ValidationError):
        serde.deserialize(serde.serialize({"number": 7}))


def test_avro_is_single_object_encoding() -> None:
    data = millstream.Avro(FLIGHT).serialize({"number": "UA1545", "delay": 3})
    assert data[:2] == b"\xc3\x01"
    assert fastavro.schemaless_reader(io.BytesIO(data[10:]), FLIGHT, None) == {"number": "UA1545", "delay": 3}
    # The fingerprint of "int" in the tests of Apache Avro: 7275d51a3f395c8f, little-endian on the wire.
    assert millstream.Avro({"type": "int"}).serialize(1)[2:10] == bytes.fromhex("7275d51a3f395c8f")[::-1]


def test_avro_reads_records_of_older_schemas_that_it_knows() -> None:
    old = millstream.Avro(OLDER).serialize({"number": "UA1545"})
    reader = millstream.Avro(FLIGHT, writers=[OLDER])
    assert reader.deserialize(old) == {"number": "UA1545", "delay": 0}
    with pytest.raises(ValueError, match="not written with a schema that this reader knows"):
        millstream.Avro(FLIGHT).deserialize(old)
    with pytest.raises(ValueError, match="bytes follow"):
        reader.deserialize(old + b"\0")


def test_callables_and_what_is_neither() -> None:
    assert serializer(str.encode) is not None
    assert deserializer(None) is None
    with pytest.raises(BadInput, match="give an Avro schema"):
        millstream.Avro({"type": "no-such"})
    with pytest.raises(BadInput, match="write json or msgpack"):
        millstream.Msgspec(format="yaml")
    for wrong in (serializer, deserializer):
        with pytest.raises(BadInput, match=r"give a Serde, such as Json\(\), or a callable"):
            wrong("json")  # type: ignore[arg-type]


def test_an_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(MissingExtra) as said:
        millstream.Avro(FLIGHT)
    assert str(said.value) == "avro is not installed: pip install 'millstream[avro]'"
