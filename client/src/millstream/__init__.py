"""Millstream for Python: a producer, message streams, administration, and the ``millstream`` command.

    import millstream

    with millstream.Producer("localhost:9092") as producer:
        producer.send("flights", b"UA1545 departed")
    with millstream.connect("localhost:9092", group="boards") as connector:
        for message in connector.create_message_streams({"flights": 1})["flights"][0]:
            print(message.value)

Names are imported on first use: ``import millstream`` alone loads nothing of Kafka's client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from millstream.admin import Admin as Admin
    from millstream.connection import Cluster as Cluster
    from millstream.consuming.connector import Connector as Connector
    from millstream.consuming.connector import connect as connect
    from millstream.consuming.message import Message as Message
    from millstream.consuming.message import Position as Position
    from millstream.consuming.stream import MessageStream as MessageStream
    from millstream.errors import BadInput as BadInput
    from millstream.errors import BadPartition as BadPartition
    from millstream.errors import BufferFull as BufferFull
    from millstream.errors import Closed as Closed
    from millstream.errors import Failed as Failed
    from millstream.errors import MillstreamError as MillstreamError
    from millstream.errors import MissingExtra as MissingExtra
    from millstream.errors import NoLeader as NoLeader
    from millstream.errors import NotDelivered as NotDelivered
    from millstream.errors import NotOwned as NotOwned
    from millstream.errors import NotSerializable as NotSerializable
    from millstream.errors import PoisonedMessage as PoisonedMessage
    from millstream.errors import ProducerFenced as ProducerFenced
    from millstream.errors import RecordTooLarge as RecordTooLarge
    from millstream.errors import UnknownGroup as UnknownGroup
    from millstream.errors import UnknownTopic as UnknownTopic
    from millstream.errors import Unreachable as Unreachable
    from millstream.producing.asynchronous import AsyncProducer as AsyncProducer
    from millstream.producing.deliveries import Delivery as Delivery
    from millstream.producing.partitioners import Murmur2 as Murmur2
    from millstream.producing.partitioners import Partitioner as Partitioner
    from millstream.producing.partitioners import Random as Random
    from millstream.producing.partitioners import RoundRobin as RoundRobin
    from millstream.producing.producer import Producer as Producer
    from millstream.producing.stamps import Audit as Audit
    from millstream.serdes import Avro as Avro
    from millstream.serdes import Json as Json
    from millstream.serdes import Msgspec as Msgspec
    from millstream.serdes import Serde as Serde
    from millstream.serdes import Text as Text

_MODULES = {
    "Admin": "admin",
    "Cluster": "connection",
    "connect": "consuming.connector",
    "Connector": "consuming.connector",
    "Message": "consuming.message",
    "Position": "consuming.message",
    "MessageStream": "consuming.stream",
    "BadInput": "errors",
    "BadPartition": "errors",
    "BufferFull": "errors",
    "Closed": "errors",
    "Failed": "errors",
    "MillstreamError": "errors",
    "MissingExtra": "errors",
    "NoLeader": "errors",
    "NotDelivered": "errors",
    "NotOwned": "errors",
    "NotSerializable": "errors",
    "PoisonedMessage": "errors",
    "ProducerFenced": "errors",
    "RecordTooLarge": "errors",
    "UnknownGroup": "errors",
    "UnknownTopic": "errors",
    "Unreachable": "errors",
    "AsyncProducer": "producing.asynchronous",
    "Delivery": "producing.deliveries",
    "Murmur2": "producing.partitioners",
    "Partitioner": "producing.partitioners",
    "Random": "producing.partitioners",
    "RoundRobin": "producing.partitioners",
    "Audit": "producing.stamps",
    "Producer": "producing.producer",
    "Avro": "serdes",
    "Json": "serdes",
    "Msgspec": "serdes",
    "Serde": "serdes",
    "Text": "serdes",
}

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module 'millstream' has no attribute '{name}'")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(f"millstream.{module}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
