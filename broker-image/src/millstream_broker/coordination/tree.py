"""The classic tree: Kafka's paths and JSON in ZooKeeper, for any store. Pure.

    /cluster/id                                  {"version":"1","id":"5Zx…"}
    /cluster/secret                              {"version":1,"secret":"…"}: ours, for authentication between brokers
    /brokers/ids/N            ephemeral          a live broker; its czxid is the broker epoch (KIP-380)
    /brokers/topics/T                            {"version":3,"topic_id":…,"partitions":{"0":[1,2]},
                                                  "adding_replicas":{},"removing_replicas":{}}   (KIP-455, KIP-516)
    /brokers/topics/T/partitions/P/state         {"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,
                                                  "isr":[1,2]}
    /controller               ephemeral          {"version":2,"brokerid":1,"timestamp":"…","kraftControllerEpoch":-1}
    /controller_epoch                            a number
    /config/{topics,brokers}/X                   {"version":1,"config":{…}}; brokers/<default> is for all of them
    /config/{users,clients,ips}/X                the same (`entities`), as /config/users/U/clients/C
    /config/changes/config_change_…  sequence    {"version":2,"entity_path":"topics/T"}
    /admin/delete_topics/T                       {"version":1,"topic_id":…}: to be deleted (of Kafka: empty)
    /isr_change_notification/isr_change_… seq.   {"version":1,"partitions":[{"topic":"T","partition":0}]}
    /brokers/generations/N                       {"version":1,"generations":{"DIRECTORY-ID":7}}

Millstream adds fields that other readers ignore (`directory`, `unclean` and `ahead` of a broker, `elr`,
`suspects`, `doubted` and `compared` of a state), and /brokers/generations.
Reading raises TreeError, naming the path.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from millstream_kafka.kafka_uuid import uuid_from, uuid_text
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition

from ..config.config import Listener
from ..config.config_types import ConfigError
from . import NO_LEADER, SHARED, BrokerRecord, CoordinationError, PartitionRecord, TopicRecord
from . import NO_STATE as NO_STATE

CLUSTER_ID = "/cluster/id"
CLUSTER_SECRET = "/cluster/secret"
BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE = "/config/changes/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
ISR_CHANGES = "/isr_change_notification"
ISR_CHANGE = "/isr_change_notification/isr_change_"
GENERATIONS = "/brokers/generations"

CONSUMERS = "/consumers"
SENSITIVE = (f"{CONFIG}/users", f"{CONFIG}/brokers", "/delegation_token/tokens", CLUSTER_SECRET)
"""Secrets are below these, or in them: Kafka's, and our own."""

ALWAYS = (
    CONSUMERS,
    BROKERS,
    TOPICS,
    CONFIG_CHANGES,
    "/config/topics",
    "/config/brokers",
    "/config/clients",
    "/config/users",
    "/config/ips",
    DELETE_TOPICS,
    "/brokers/seqid",
    ISR_CHANGES,
    "/log_dir_event_notification",
    GENERATIONS,
)
"""Nodes created before any others, as in Kafka."""
LEAST_SECRET_BYTES = 16
DEFAULT_ENTITY = "<default>"


_TOPIC_ID = re.compile(rb'"topic_id" *: *"([A-Za-z0-9_-]{22})"')


class TreeError(CoordinationError):
    """A node is not valid."""


def is_sensitive(path: str) -> bool:
    """Whether only brokers may read a node, if access to nodes is restricted."""
    return path.startswith(SENSITIVE)


def broker_path(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def config_path(entity: str) -> str:
    """`entity` is `topics/T`, `brokers/1`, `brokers/<default>` or an `Entity`'s path."""
    return f"{CONFIG}/{entity}"


def topic_entity(topic: str) -> str:
    return f"topics/{topic}"


def broker_entity(broker_id: int | None) -> str:
    return f"brokers/{DEFAULT_ENTITY if broker_id is None else broker_id}"


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(path: str, data: bytes, parse_int: Callable[[str], int] | None = None) -> dict[str, Any]:
    try:
        value = json.loads(data, parse_int=parse_int)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TreeError(f"{path} is not a JSON object: {data[:100]!r}")
    return value


def _number(digits: str) -> int:
    """Python's `int`, as a function of ours: it lets other threads run while thousands of partitions are decoded."""
    return int(digits)


def _wrong(path: str, data: bytes, error: Exception) -> TreeError:
    return TreeError(f"{path} cannot be used: {error!r} in {data[:200]!r}")


# Brokers


def broker_json(broker: BrokerRecord, now_ms: int | None = None) -> bytes:
    plaintext = next((listener for listener in broker.listeners if listener.protocol == "PLAINTEXT"), None)
    rack = {} if broker.rack is None else {"rack": broker.rack}
    return _dump(
        {
            "features": {},
            "listener_security_protocol_map": {
                listener.name: listener.protocol for listener in broker.listeners
            },
            "endpoints": [str(listener) for listener in broker.listeners],
            "jmx_port": -1,
            "port": plaintext.port if plaintext else -1,
            "host": plaintext.host if plaintext else None,
            "version": 5,
            "timestamp": _now(now_ms),
            **rack,
            "directory": broker.directory,
            "unclean": broker.unclean,
            **({"ahead": broker.ahead} if broker.ahead else {}),
        }
    )


def broker_from(broker_id: int, data: bytes, epoch: int) -> BrokerRecord:
    path = broker_path(broker_id)
    value = _load(path, data)
    try:
        protocols = value.get("listener_security_protocol_map", {})
        listeners = tuple(_endpoint(text, protocols) for text in value["endpoints"])
        return BrokerRecord(
            broker_id,
            listeners,
            value.get("rack"),
            epoch,
            bool(value.get("unclean", False)),
            value.get("directory"),
            int(value.get("ahead", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong(path, data, error) from None


def _endpoint(text: str, protocols: Mapping[str, str]) -> Listener:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (separator and colon):
        raise ConfigError(f"{text} is not NAME://HOST:PORT")
    return Listener(name, host.strip("[]"), int(port), protocols.get(name, name))


# Topics and their partitions


def topic_json(topic: TopicRecord) -> bytes:
    """The topic's JSON without `json.dumps`, which would hold up the loop for 4 ms with 10,000 partitions."""

    def of(field: str) -> str:
        pairs = ((index, getattr(partition, field)) for index, partition in enumerate(topic.partitions))
        lists = (
            f'"{index}":[{",".join(map(str, ids))}]' for index, ids in pairs if ids or field == "replicas"
        )
        return f"{{{','.join(lists)}}}"

    return (
        f'{{"removing_replicas":{of("removing")},"partitions":{of("replicas")},'
        f'"topic_id":"{uuid_text(topic.topic_id)}","adding_replicas":{of("adding")},"version":3}}'
    ).encode()


def topic_from(name: str, data: bytes) -> TopicRecord:
    """The topic with its assignments, without states and configuration."""
    path = topic_path(name)
    value = _load(path, data, _number)
    try:
        replicas: dict[str, list[int]] = value["partitions"]
        adding, removing = value.get("adding_replicas", {}), value.get("removing_replicas", {})
        partitions = tuple(
            _assigned(tuple(replicas[index]), tuple(adding.get(index, ())), tuple(removing.get(index, ())))
            for index in map(str, range(len(replicas)))
        )
        return TopicRecord(name, _uuid_from(value.get("topic_id")), partitions)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _wrong(path, data, error) from None


@lru_cache(maxsize=SHARED)
def _assigned(
    replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> PartitionRecord:
    """A partition without a state. Those with the same assignment share one record."""
    return PartitionRecord(replicas, NO_LEADER, -1, (), NO_STATE, adding=adding, removing=removing)


def topic_id_from(name: str, data: bytes) -> uuid.UUID:
    """Only the id, from the data for `topic_from`, without decoding thousands of partitions."""
    if found := _TOPIC_ID.search(data):
        return uuid_from(found[1].decode())
    path = topic_path(name)
    value = _load(path, data)
    try:
        return _uuid_from(value.get("topic_id"))
    except (TypeError, ValueError, AttributeError) as error:
        raise _wrong(path, data, error) from None


def state_json(partition: PartitionRecord) -> bytes:
    elr = {"elr": list(partition.elr)} if partition.elr else {}
    suspects = {"suspects": list(partition.suspects)} if partition.suspects else {}
    doubted = {"doubted": True} if partition.doubted else {}
    compared = {"compared": partition.compared} if partition.compared >= 0 else {}
    return _dump(
        {
            "controller_epoch": partition.controller_epoch,
            "leader": partition.leader,
            "version": 1,
            "leader_epoch": partition.leader_epoch,
            "isr": list(partition.isr),
            **elr,
            **suspects,
            **doubted,
            **compared,
        }
    )


def with_state(path: str, partition: PartitionRecord, data: bytes, version: int) -> PartitionRecord:
    """The partition with its state, as read in that version."""
    try:
        return _with_state(partition.replicas, partition.adding, partition.removing, data, version)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        _load(path, data)
        raise _wrong(path, data, error) from None


@lru_cache(maxsize=SHARED)
def _with_state(
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    data: bytes,
    version: int,
) -> PartitionRecord:
    """The record of an assignment and a state; most of thousands of partitions share both, and so one record."""
    value = json.loads(data)
    return PartitionRecord(
        replicas,
        leader=int(value["leader"]),
        leader_epoch=int(value["leader_epoch"]),
        isr=tuple(map(int, value["isr"])),
        version=version,
        controller_epoch=int(value["controller_epoch"]),
        adding=adding,
        removing=removing,
        elr=tuple(map(int, value.get("elr", ()))),
        suspects=tuple(map(int, value.get("suspects", ()))),
        doubted=bool(value.get("doubted", False)),
        compared=int(value.get("compared", -1)),
    )


def leader_epoch_from(path: str, data: bytes) -> int:
    return with_state(path, PartitionRecord((), -1, -1, ()), data, 0).leader_epoch


# The controller


def controller_json(broker_id: int, now_ms: int | None = None) -> bytes:
    return _dump({"version": 2, "brokerid": broker_id, "timestamp": _now(now_ms), "kraftControllerEpoch": -1})


def controller_from(data: bytes) -> int:
    try:
        return int(_load(CONTROLLER, data)["brokerid"])
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong(CONTROLLER, data, error) from None


def controller_epoch_from(data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise _wrong(CONTROLLER_EPOCH, data, error) from None


# Cluster id, configuration, notes


def cluster_id_json(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def cluster_id_from(data: bytes) -> str:
    value = _load(CLUSTER_ID, data).get("id")
    if not isinstance(value, str):
        raise TreeError(f"{CLUSTER_ID} has no id: {data!r}")
    return value


def cluster_secret_json(secret: bytes) -> bytes:
    return _dump({"version": 1, "secret": secret.hex()})


def cluster_secret_from(data: bytes) -> bytes:
    try:
        secret = bytes.fromhex(json.loads(data)["secret"])
    except (KeyError, TypeError, ValueError, RecursionError):
        secret = b""
    if len(secret) < LEAST_SECRET_BYTES:
        raise TreeError(f"{CLUSTER_SECRET} has no secret")  # keep it out of the log
    return secret


def config_json(config: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(config)})


def config_from(entity: str, data: bytes) -> dict[str, str]:
    path = config_path(entity)
    if not data:  # the parent of an entity
        return {}
    try:
        value = _load(path, data).get("config", {})
        if not isinstance(value, dict):
            raise TreeError(f"{path} has no configuration: {data[:200]!r}")
    except TreeError:
        if entity.startswith("users/"):  # keep credentials out of the log
            raise TreeError(f"{path} has no configuration") from None
        raise
    return {str(key): str(text) for key, text in value.items()}


def config_change_json(entity: str) -> bytes:
    return _dump({"version": 2, "entity_path": entity})


def config_change_from(path: str, data: bytes) -> str:
    """The entity that was changed."""
    entity = _load(path, data).get("entity_path")
    if not isinstance(entity, str):
        raise TreeError(f"{path} names no entity: {data[:200]!r}")
    return entity


def deletion_json(topic_id: uuid.UUID) -> bytes:
    return _dump({"version": 1, "topic_id": uuid_text(topic_id)})


def deletion_from(name: str, data: bytes) -> uuid.UUID | None:
    """The id of the topic to delete; None if the request only names it."""
    return topic_id_from(name, data) if data else None


def isr_change_json(partitions: Iterable[TopicPartition]) -> bytes:
    named = [{"topic": topic, "partition": partition} for topic, partition in partitions]
    return _dump({"version": 1, "partitions": named})


def isr_change_from(path: str, data: bytes) -> list[TopicPartition]:
    try:
        return [
            (partition["topic"], int(partition["partition"])) for partition in _load(path, data)["partitions"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong(path, data, error) from None


def generations_path(broker_id: int) -> str:
    return f"{GENERATIONS}/{broker_id}"


def generations_json(generations: Mapping[str, int]) -> bytes:
    """By log directory id."""
    return _dump({"version": 1, "generations": dict(generations)})


def generations_from(path: str, data: bytes) -> dict[str, int]:
    try:
        return {
            directory: int(generation) for directory, generation in _load(path, data)["generations"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _wrong(path, data, error) from None


def _now(now_ms: int | None) -> str:
    return str(int(time.time() * 1000) if now_ms is None else now_ms)


def _uuid_from(text: str | None) -> uuid.UUID:
    if text is None:  # a topic of Kafka's before 2.8
        return ZERO_UUID
    return uuid_from(text)
