"""Values in Protocol Buffers as columns, read with Arrow; messages are made by hand and by Google's library."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from millstream_harness.spark_loads import PY4J, Loads
from millstream_jobs.formats.protobuf import message_type, row
from millstream_jobs.run import BadRun
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
]
AT = dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)


def field(name: str, number: int, kind: Any, type_name: str = "", **more: Any) -> Field:
    return Field(name=name, number=number, type=kind, type_name=type_name or None, label=1, **more)


def descriptors(*files: descriptor_pb2.FileDescriptorProto) -> str:
    """A descriptor set as protoc --include_imports writes it, in base64."""
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()


def imported() -> list[descriptor_pb2.FileDescriptorProto]:
    files = []
    for module in (timestamp_pb2, wrappers_pb2):
        files.append(descriptor_pb2.FileDescriptorProto())
        module.DESCRIPTOR.CopyToProto(files[-1])
    return files


def flights(fields: Iterable[Field], **more: Any) -> descriptor_pb2.FileDescriptorProto:
    """flights.proto, with the message Flight."""
    flight = descriptor_pb2.DescriptorProto(name="Flight", field=fields, **more)
    return descriptor_pb2.FileDescriptorProto(
        name="flights.proto",
        package="flights",
        syntax="proto3",
        dependency=[file.name for file in imported()],
        message_type=[flight],
    )


SMALL = descriptors(
    *imported(),
    flights(
        [
            field("carrier", 1, Field.TYPE_STRING),
            field("delay", 2, Field.TYPE_SINT32),
            field("at", 3, Field.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
        ]
    ),
)
# Flight {carrier: "UA", delay: -2, at: {seconds: 1357034400}}, by protobuf.dev, "Encoding": tag, length, bytes; zigzag.
UA = bytes.fromhex("0a02 554110 031a06 08a0e78a8705")


def test_messages_of_one_type(loads: Loads) -> None:
    short = UA[:-3]
    loads.publish([(None, UA), (None, short), (None, None), (None, b""), (None, b"\xff" * 40)])
    value = Value("Protobuf", descriptor_set=SMALL, message="flights.Flight")
    result = loads.load((0, 0, 5), value=value, partition_by=("date",))
    assert (result.rows, result.corrupt_records) == (5, 2)
    rows = loads.rows()
    none = (None, None, None)
    assert [tuple(row[name] for name in ("carrier", "delay", "at")) for row in rows] == [
        ("UA", -2, AT),
        none,
        none,
        ("", 0, None),
        none,
    ]
    assert [row["_corrupt_record"] for row in rows] == [None, short, None, None, b"\xff" * 40]
    assert str(rows[0]["date"]) == "2013-01-01"


def everything() -> str:
    """A message with a field of each type."""
    leg = descriptor_pb2.DescriptorProto(
        name="Leg",
        field=[
            field("to", 1, Field.TYPE_STRING),
            field("at", 2, Field.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
            Field(
                name="calls",
                number=3,
                type=Field.TYPE_MESSAGE,
                type_name=".google.protobuf.Timestamp",
                label=3,
            ),
        ],
    )
    entry = descriptor_pb2.DescriptorProto(
        name="SeatsEntry",
        field=[
            field("key", 1, Field.TYPE_STRING),
            field("value", 2, Field.TYPE_MESSAGE, ".flights.Flight.Leg"),
        ],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    state = descriptor_pb2.EnumDescriptorProto(
        name="State",
        value=[descriptor_pb2.EnumValueDescriptorProto(name=name, number=i) for i, name in enumerate("AB")],
    )
    flight = flights(
        [
            field("big", 1, Field.TYPE_UINT64),
            field("small", 2, Field.TYPE_UINT32),
            field("ratio", 3, Field.TYPE_DOUBLE),
            field("raw", 4, Field.TYPE_BYTES),
            field("state", 5, Field.TYPE_ENUM, ".flights.Flight.State"),
            field("leg", 6, Field.TYPE_MESSAGE, ".flights.Flight.Leg"),
            Field(name="legs", number=7, type=Field.TYPE_MESSAGE, type_name=".flights.Flight.Leg", label=3),
            Field(
                name="seats",
                number=8,
                type=Field.TYPE_MESSAGE,
                type_name=".flights.Flight.SeatsEntry",
                label=3,
            ),
            field("wrapped", 9, Field.TYPE_MESSAGE, ".google.protobuf.Int64Value"),
            field("maybe", 10, Field.TYPE_BOOL, proto3_optional=True, oneof_index=0),
            Field(name="numbers", number=11, type=Field.TYPE_FIXED64, label=3),
        ],
        nested_type=[leg, entry],
        enum_type=[state],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_maybe")],
    )
    return descriptors(*imported(), flight)


def test_each_type_of_field_has_its_column(loads: Loads) -> None:
    kind: Any = message_type(everything(), "flights.Flight")
    full = kind(
        big=2**64 - 1, small=2**32 - 1, ratio=0.5, raw=b"\x00\xff", state=1, maybe=False, numbers=[1, 2]
    )
    full.leg.to = "JFK"
    full.leg.at.FromDatetime(AT)
    full.leg.calls.add(seconds=-1, nanos=500_000_999)
    full.legs.add(to="EWR")
    full.seats["1A"].to = "LGA"
    full.wrapped.value = 0
    unnamed = kind(state=7)
    loads.publish([(None, full.SerializeToString()), (None, unnamed.SerializeToString())])
    value = Value("Protobuf", descriptor_set=everything(), message="flights.Flight")
    assert loads.load((0, 0, 2), value=value).corrupt_records == 0
    first, second = loads.rows()
    assert {name: first[name] for name in first if not name.startswith(("_", "load_run"))} == {
        "big": Decimal(2**64 - 1),
        "small": 2**32 - 1,
        "ratio": 0.5,
        "raw": b"\x00\xff",
        "state": "B",
        "leg": {"to": "JFK", "at": AT, "calls": [dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, dt.UTC)]},
        "legs": [{"to": "EWR", "at": None, "calls": []}],
        "seats": [("1A", {"to": "LGA", "at": None, "calls": []})],
        "wrapped": 0,
        "maybe": False,
        "numbers": [Decimal(1), Decimal(2)],
    }
    assert (second["state"], second["leg"], second["wrapped"], second["maybe"]) == ("7", None, None, None)
    assert (second["big"], second["legs"], second["seats"]) == (0, [], [])


def test_a_time_that_no_column_can_have_is_corrupt() -> None:
    kind: Any = message_type(SMALL, "flights.Flight")
    late = kind(carrier="UA")
    late.at.seconds = 2**60
    assert row(SMALL, "flights.Flight", late.SerializeToString()) is None
    micros = int(AT.timestamp()) * 1_000_000
    assert row(SMALL, "flights.Flight", UA) == ("UA", -2, micros)
    for seconds, nanos in ((-62_135_596_800, 0), (253_402_300_799, 999_999_999)):
        edge = kind(carrier="UA")
        edge.at.seconds, edge.at.nanos = seconds, nanos
        assert row(SMALL, "flights.Flight", edge.SerializeToString()) == (
            "UA",
            0,
            seconds * 1_000_000 + nanos // 1000,
        )
        edge.at.seconds += -1 if seconds < 0 else 1
        assert row(SMALL, "flights.Flight", edge.SerializeToString()) is None
        edge.at.seconds, edge.at.nanos = seconds, -1
        assert row(SMALL, "flights.Flight", edge.SerializeToString()) is None


@pytest.mark.parametrize(
    ("descriptor_set", "message", "said"),
    [
        ("?", "flights.Flight", "value.descriptorSet: is not allowed: it must be the base64 of what `protoc"),
        (
            descriptors(flights([])),
            "flights.Flight",
            "value.descriptorSet: flights.proto cannot be used: Couldn't build proto file into descriptor pool: ",
        ),
        (
            SMALL,
            "Flight",
            'value.message: "Flight" is not allowed: value.descriptorSet has no such message: flights.Flight',
        ),
        (
            descriptors(*imported(), flights([field("next", 1, Field.TYPE_MESSAGE, ".flights.Flight")])),
            "flights.Flight",
            "value.message: flights.Flight is not allowed: flights.Flight contains itself",
        ),
        (
            descriptors(*imported(), flights([field("_offset", 1, Field.TYPE_INT64)])),
            "flights.Flight",
            'value.message: flights.Flight: "_offset" is not allowed: it is there twice, or one of the record',
        ),
    ],
)
def test_descriptors_that_describe_no_columns_are_refused(
    loads: Loads, descriptor_set: str, message: str, said: str
) -> None:
    loads.publish([(None, UA)])
    value = Value("Protobuf", descriptor_set=descriptor_set, message=message)
    with pytest.raises(BadRun) as refused:
        loads.load((0, 0, 1), value=value)
    assert said in str(refused.value)
