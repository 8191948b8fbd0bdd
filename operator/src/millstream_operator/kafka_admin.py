"""The operator's view of a cluster's brokers: kafka-python's admin client with plain records in and out.

Calls block, with explicit timeouts, and may come from many threads; a cluster has one client, whose connections are
reused. Whole-call failures (no broker answers, the client gave up) raise ``AdminError`` and drop the client, so that
the next call connects anew; what concerns one topic or group comes back as a ``Refusal`` beside the others' success.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import BrokerResponseError, IncompatibleBrokerVersion, KafkaError, RetriableError, for_code
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.structs import OffsetAndMetadata, TopicPartition

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 15.0
# After a failed connection: how long callers are told so at once, instead of each waiting for its own failure.
RETRY_AFTER_S = 2.0
EARLIEST, LATEST = -2, -1  # timestamps that ListOffsets understands

Result = TypeVar("Result")


class AdminError(Exception):
    """No broker answers, or a whole request failed; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker's no to one topic or group: Kafka's error name and the broker's words."""

    error: str
    message: str

    def __str__(self) -> str:
        return self.message or self.error


class Partition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the brokers have it. ``config``: the keys set on the topic itself. ``size_bytes``: all copies."""

    topic_id: str
    partitions: int
    replication_factor: int
    under_replicated: int
    config: Mapping[str, str]
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Keys to set on a topic, and keys to reset to the brokers' default."""

    set: Mapping[str, str]
    reset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMember:
    client_id: str
    host: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """``state`` by Kafka's names: Empty, Stable, PreparingRebalance, CompletingRebalance, Dead (there is none)."""

    state: str
    members: tuple[GroupMember, ...]


class _TidySocket(KafkaNetSocket):  # type: ignore[misc]
    """kafka-python's own way to connect, except that a socket which does not connect is closed."""

    SCHEMES = ("millstream",)  # kafka-python picks the class by the scheme of proxy_url

    async def connect(
        self, net: Any, addrinfo: Any, socket_options: Any = (), timeout_at: float | None = None
    ) -> socket.socket:
        family, kind, protocol, _, address = addrinfo
        sock: socket.socket = self.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            for option in socket_options:
                sock.setsockopt(*option)
            await self.sock_connect(net, sock, address, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise
        return sock


class KafkaAdmin:
    """The brokers at one bootstrap address."""

    def __init__(self, bootstrap: str, client_id: str = "millstream-operator") -> None:
        self.bootstrap = bootstrap
        self._client_id = client_id
        self._lock = threading.Lock()
        self._client: KafkaAdminClient | None = None
        self._failed_until = 0.0
        self._failure = ""

    def cluster_id(self) -> str:
        """Kafka's id of the cluster."""
        return str(self._call(lambda client: client.describe_cluster())["cluster_id"])

    def topic_names(self) -> list[str]:
        """Every topic there is."""
        return sorted(self._call(lambda client: client.list_topics()))

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """Those of the topics that exist: three requests, however many they are."""
        described = self._describe(names)
        if not described:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in described]
        configs = self._call(lambda client: client.describe_configs(resources)).get("topic", {})
        sizes = self._sizes(list(described))
        return {
            name: _topic_state(topic, configs.get(name, {}), sizes.get(name) if sizes is not None else None)
            for name, topic in described.items()
        }

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """Number of partitions of those topics that exist."""
        return {name: len(topic["partitions"]) for name, topic in self._describe(topics).items()}

    def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        wanted = {
            topic.name: {
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "configs": dict(topic.config),
            }
            for topic in topics
        }
        answer = self._call(lambda client: client.create_topics(wanted, raise_errors=False))
        return {
            topic["name"]: _refusal(topic["error_code"], topic.get("error_message"))
            for topic in answer["topics"]
        }

    def add_partitions(self, totals: Mapping[str, int]) -> dict[str, Refusal | None]:
        answer = self._call(lambda client: client.create_partitions(dict(totals), raise_errors=False))
        return {result.name: _refusal(result.error_code, result.error_message) for result in answer.results}

    def change_configs(self, changes: Mapping[str, ConfigChange]) -> dict[str, Refusal | None]:
        """Incremental: keys that are not named stay as they are."""
        resources = [
            ConfigResource(
                ConfigResourceType.TOPIC,
                name,
                {
                    **{key: ("SET", value) for key, value in change.set.items()},
                    **dict.fromkeys(change.reset, ("DELETE", None)),
                },
            )
            for name, change in changes.items()
        ]
        answer = self._call(
            lambda client: client.alter_configs(resources, raise_on_unknown=False, incremental=True)
        )
        return {name: _refusal_of_text(result) for name, result in answer.get("topic", {}).items()}

    def delete_topics(self, names: Collection[str]) -> dict[str, Refusal | None]:
        answer = self._call(lambda client: client.delete_topics(list(names), raise_errors=False))
        return {
            topic["name"]: _refusal(topic["error_code"], topic.get("error_message"))
            for topic in answer["topics"]
        }

    def groups(self, group_ids: Collection[str]) -> dict[str, GroupState]:
        """Every group asked for; one that does not exist is Dead."""
        answer = self._call(lambda client: client.describe_groups(list(group_ids)))
        return {name: _group_state(group) for name, group in answer.items()}

    def committed(self, group_ids: Collection[str]) -> dict[str, dict[Partition, int]]:
        """All committed offsets of groups."""
        answer = self._call(lambda client: client.list_group_offsets(list(group_ids)))
        return {
            group: {
                Partition(*partition): entry.offset
                for partition, entry in offsets.items()
                if entry.offset >= 0
            }
            for group, offsets in answer.items()
        }

    def offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
        """For each partition the offset of the first record at or after a time in milliseconds, or of ``EARLIEST`` or
        ``LATEST``; -1 when no record is as late. Every partition must exist."""
        if not wanted:
            return {}
        specs = {TopicPartition(*partition): when for partition, when in wanted.items()}
        answer = self._call(lambda client: client.list_partition_offsets(specs))
        return {Partition(*partition): found.offset for partition, found in answer.items()}

    def commit(self, group_id: str, offsets: Mapping[Partition, int]) -> Refusal | None:
        """Commit offsets for a group without members."""
        entries = {
            TopicPartition(*partition): OffsetAndMetadata(at, "", None) for partition, at in offsets.items()
        }
        answer = self._call(lambda client: client.alter_group_offsets(group_id, entries))
        failed = sorted({_name(error) for error in answer.values() if getattr(error, "errno", 0)})
        return Refusal(failed[0], f"the broker refused to commit: {', '.join(failed)}") if failed else None

    def delete_groups(self, group_ids: Collection[str]) -> dict[str, Refusal | None]:
        answer = self._call(lambda client: client.delete_groups(list(group_ids)))
        return {
            group: None if result == "OK" else Refusal(result, result) for group, result in answer.items()
        }

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _describe(self, names: Collection[str]) -> dict[str, Any]:
        if not names:
            return {}
        answer = self._call(lambda client: client.describe_topics(list(names)))
        return {topic["name"]: topic for topic in answer if topic["error_code"] == 0}

    def _sizes(self, names: list[str]) -> dict[str, int] | None:
        """Bytes by topic over all brokers, or None from brokers that cannot tell."""
        try:
            answer = self._call(lambda client: client.describe_log_dirs(names))
        except _NotSupported:
            return None
        sizes = dict.fromkeys(names, 0)
        for broker in answer:
            for log_dir in broker["log_dirs"]:
                for topic in log_dir["topics"]:
                    sizes[topic["name"]] += sum(
                        partition["partition_size"] for partition in topic["partitions"]
                    )
        return sizes

    def _call(self, operation: Callable[[KafkaAdminClient], Result]) -> Result:
        for wait in (0.2, 0.5, None):
            client = self._connected()
            try:
                return operation(client)
            except IncompatibleBrokerVersion as error:
                raise _NotSupported(
                    f"the brokers at {self.bootstrap} do not know a request: {error}"
                ) from error
            except (KafkaError, OSError) as error:
                self._drop(client)  # what it knows of leaders and coordinators may be old
                answered = isinstance(error, BrokerResponseError)
                if answered and isinstance(error, RetriableError) and wait is not None:
                    time.sleep(wait)
                    continue
                says = "answer" if answered else "do not answer"
                raise AdminError(f"the brokers at {self.bootstrap} {says}: {_words(error)}") from error
        raise AssertionError("unreachable")

    def _connected(self) -> KafkaAdminClient:
        with self._lock:
            if self._client is not None:
                return self._client
            if time.monotonic() < self._failed_until:
                raise AdminError(self._failure)
            # Said at once: kafka-python would try again until its timeout, and leave sockets behind.
            if not _listens(self.bootstrap):
                self._refuse_for_a_while()
            # When the admin client's constructor fails, it leaves its network client with a thread and sockets.
            networks: list[KafkaNetClient] = []

            def network(**config: Any) -> KafkaNetClient:
                networks.append(KafkaNetClient(**config))
                return networks[-1]

            try:
                self._client = KafkaAdminClient(
                    kafka_client=network,
                    proxy_url=f"{_TidySocket.SCHEMES[0]}://",
                    bootstrap_servers=self.bootstrap,
                    client_id=self._client_id,
                    bootstrap_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
                    request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
                    reconnect_backoff_max_ms=1000,
                )
            except (KafkaError, OSError, ValueError) as error:
                for client in networks:
                    client.close()
                self._refuse_for_a_while(error)
            assert self._client is not None
            return self._client

    def _refuse_for_a_while(self, cause: Exception | None = None) -> NoReturn:
        self._failed_until = time.monotonic() + RETRY_AFTER_S
        self._failure = f"no broker answers at {self.bootstrap}"
        raise AdminError(self._failure) from cause

    def _drop(self, client: KafkaAdminClient) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
        client.close()


class _NotSupported(AdminError):
    """The brokers do not know this request."""


class AdminPool:
    """One KafkaAdmin for each address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._admins: dict[str, KafkaAdmin] = {}

    def at(self, bootstrap: str) -> KafkaAdmin:
        with self._lock:
            return self._admins.setdefault(bootstrap, KafkaAdmin(bootstrap))

    def forget(self, bootstrap: str) -> None:
        """The cluster there is gone."""
        with self._lock:
            admin = self._admins.pop(bootstrap, None)
        if admin is not None:
            admin.close()

    def close(self) -> None:
        with self._lock:
            admins, self._admins = self._admins, {}
        for admin in admins.values():
            admin.close()


def _listens(bootstrap: str) -> bool:
    """Does one of the addresses take a connection?"""
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError, ValueError):
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            return True
    return False


def _topic_state(topic: Mapping[str, Any], configs: Mapping[str, Any], size: int | None) -> TopicState:
    partitions: Sequence[Mapping[str, Any]] = topic["partitions"]
    return TopicState(
        topic_id=uuid_text(topic.get("topic_id")),
        partitions=len(partitions),
        replication_factor=max((len(p["replica_nodes"]) for p in partitions), default=0),
        under_replicated=sum(len(p["isr_nodes"]) < len(p["replica_nodes"]) for p in partitions),
        config={
            key: entry["value"] or ""
            for key, entry in configs.items()
            if entry["config_source"] == "DYNAMIC_TOPIC_CONFIG"
        },
        size_bytes=size,
    )


def _group_state(group: Mapping[str, Any]) -> GroupState:
    members = []
    for member in group["members"]:
        assignment = member.get("member_assignment")
        topics = assignment.get("assigned_partitions", ()) if isinstance(assignment, Mapping) else ()
        partitions = tuple(
            Partition(entry["topic"], index) for entry in topics for index in sorted(entry["partitions"])
        )
        host = str(member["client_host"]).removeprefix("/")
        members.append(GroupMember(member["client_id"], host, partitions))
    members.sort(key=lambda m: (m.client_id, m.host, m.partitions))
    return GroupState(group["group_state"] or "Dead", tuple(members))


def uuid_text(value: object) -> str:
    """A uuid as Kafka writes it: URL-safe base64 without padding."""
    raw = uuid.UUID(str(value)).bytes if value else bytes(16)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _refusal(code: int, message: str | None) -> Refusal | None:
    if code == 0:
        return None
    return Refusal(_name(for_code(code)), message or str(getattr(for_code(code), "description", "")))


def _refusal_of_text(result: str) -> Refusal | None:
    """From what kafka-python makes of an altered config: "OK" or "[Error 40] InvalidConfigurationError: words"."""
    found = re.match(r"\[Error (\d+)\] (?:\w+Error: )?(.*)", result, re.DOTALL)
    if found is None:
        return None if result == "OK" else Refusal("UNKNOWN_SERVER_ERROR", result)
    return _refusal(int(found[1]), found[2])


def _name(error: Any) -> str:
    """Kafka's name of an error class, as INVALID_CONFIG."""
    return str(getattr(error, "message", None) or error.__name__)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
