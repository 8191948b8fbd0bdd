"""The brokers of a cluster: finds leaders and coordinators, connects to them, and reconnects after a failure.

There is one connection per broker, opened on first use and shared by all callers. Connecting and looking up
metadata are retried with growing pauses until ``timeout``, each attempt with ``connect_timeout`` or
``lookup_timeout``, unless TLS or SASL failed; a caller's request is sent once. Leaders and coordinators are cached
until a call to them fails. Only the caller sees the error codes in a response: if one says that the leader or
coordinator has moved, it calls ``forget_leaders`` or ``forget_coordinator``, and retries.

Raises the exceptions of ``errors``, and ApiError if the cluster refuses: no such topic, leader or coordinator.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from ..protocol import find_coordinator, metadata
from ..protocol.api import Api, Req, Res
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.find_coordinator import FindCoordinatorRequest
from ..protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ..topic_partition import TopicPartition
from .connection import MAX_RESPONSE_BYTES, Connection
from .errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    CredentialsMissing,
    RequestTimedOut,
    SecurityFailed,
)
from .security import CredentialsError, CredentialSource

T = TypeVar("T")
MAX_AGE_S = 300.0
"""How long a leader is cached."""
BACKOFF_MAX_S = 1.0
"""Longest pause between two attempts to connect."""
REFUSED_S = 1.0
"""How long to leave a broker alone that refused our credentials: many attempts may lock an account."""
MANY_COORDINATORS_SINCE = 4
"""The first version of FindCoordinator for several keys."""
Address = tuple[str, int]


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[Address]:
    """``"host:port,host:port"`` as addresses; raises ValueError that names the wrong part."""
    addresses = []
    for part in bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap:
        host, _, port = part.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
            raise ValueError(f"bootstrap: {part.strip()!r} is not HOST:PORT")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not addresses:
        raise ValueError("bootstrap: no HOST:PORT is given")
    return addresses


class ClusterClient:
    """A cluster, by its bootstrap addresses. Any number of tasks may use it at once.

    Instead, ``bootstrap`` may map node ids to addresses: these brokers and no others, whatever metadata says.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[int, Address],
        client_id: str = "millstream",
        *,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        lookup_timeout: float | None = None,
        retry_timeout: float | None = None,
        retry_backoff: float = 0.05,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        security: CredentialSource | None = None,
        before_request: Callable[[Api[Any, Any]], None] | None = None,
    ) -> None:
        """All times are in seconds.

        ``lookup_timeout``: of each request for metadata or coordinators, by default ``connect_timeout``. Such a
        request waits for those before it on its connection, and closes the connection if it times out.
        ``retry_timeout``: how long connecting and looking up metadata are retried, by default ``timeout``; with 0
        they are tried once. ``security`` is read for each new connection. ``before_request``
        is called on the event loop before each request but those that open a connection; the caller gets what it
        raises.
        """
        self._is_fixed = isinstance(bootstrap, Mapping)
        self.brokers: dict[int, Address] = dict(bootstrap) if isinstance(bootstrap, Mapping) else {}
        self.bootstrap = (
            [*self.brokers.values()] if isinstance(bootstrap, Mapping) else parse_bootstrap(bootstrap)
        )
        self.client_id = client_id
        self.timeout = timeout
        self.connect_timeout = min(connect_timeout, timeout)
        self.lookup_timeout = self.connect_timeout if lookup_timeout is None else lookup_timeout
        self.retry_timeout = timeout if retry_timeout is None else retry_timeout
        self.cluster_id: str | None = None
        self.controller_id = -1
        self._backoff = retry_backoff
        self._max_response_bytes = max_response_bytes
        self._security = security
        self._before_request = before_request
        self._refused: dict[Address, tuple[float, SecurityFailed]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._leaders: dict[TopicPartition, tuple[int, float]] = {}
        self._coordinators: dict[tuple[str, int], int] = {}
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._is_closed = True
        ending: list[asyncio.Task[Any]] = [*self._opening.values(), *self._retiring]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for connection in list(self._connections.values()):
            await connection.close()
        self._connections.clear()

    # --- metadata ---

    async def metadata(self, topics: Collection[str] | None) -> MetadataResponse:
        """Get the metadata of topics (None: all) from any broker. Creates no topic; remembers brokers and leaders."""
        return await self._retry(lambda: self._ask_metadata(topics))

    async def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader; waits for an election, raises ApiError if it does not exist."""

        async def ask() -> int:
            response = await self._ask_metadata([topic])
            return _leader_in(response, topic, partition)

        known = self.known_leaders([(topic, partition)])
        return known[topic, partition] if known else await self._retry(ask)

    def known_leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The node ids of cached leaders. Without I/O: ``metadata`` looks up others that there are now."""
        since = time.monotonic() - MAX_AGE_S
        found = {where: self._leaders.get(where) for where in partitions}
        return {where: known[0] for where, known in found.items() if known is not None and known[1] > since}

    async def coordinator(self, key: str, key_type: int = 0) -> int:
        """The node id of the coordinator of a group (key type 0) or transactional id (1)."""
        return (await self.coordinators([key], key_type))[key]

    async def coordinators(self, keys: Collection[str], key_type: int = 0) -> dict[str, int]:
        """The node ids of the coordinators of several groups or transactional ids.

        One request for all of them, if the broker can answer it (KIP-699).
        """

        found = {key: node for key in keys if (node := self._coordinators.get((key, key_type))) is not None}

        async def ask() -> None:
            connection = await self._any_connection()
            left = [key for key in keys if key not in found]
            many = connection.version(find_coordinator.API) >= MANY_COORDINATORS_SINCE
            for asked in [left] if many else [[key] for key in left]:
                request = FindCoordinatorRequest(key=asked[0], key_type=key_type, coordinator_keys=asked)
                response = await self._call(connection, find_coordinator.API, request, self.lookup_timeout)
                answers: dict[str, Any] = {each.key: each for each in response.coordinators}
                for key in asked:
                    answer = answers.get(key) if many else response
                    if answer is None:
                        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no answer for {key}")
                    if answer.error_code:
                        raise ApiError(ErrorCode.of(answer.error_code), answer.error_message)
                    if not self._is_fixed:
                        self.brokers[answer.node_id] = (answer.host, answer.port)
                    found[key] = self._coordinators[key, key_type] = answer.node_id

        if len(found) < len(set(keys)):
            await self._retry(ask)
        return found

    def forget_leaders(self, *topics: str) -> None:
        """Forget the leaders of these topics, or of all, until they are next needed."""
        for topic, partition in list(self._leaders):
            if not topics or topic in topics:
                del self._leaders[topic, partition]

    def forget_coordinator(self, key: str, key_type: int = 0) -> None:
        self._coordinators.pop((key, key_type), None)

    async def _ask_metadata(self, topics: Collection[str] | None) -> MetadataResponse:
        connection = await self._any_connection()
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(wanted, allow_auto_topic_creation=False)
        response = await self._call(connection, metadata.API, request, self.lookup_timeout)
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if not self._is_fixed:
            self.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        now = time.monotonic()
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.leader_id >= 0 and topic.name is not None:
                    self._leaders[topic.name, partition.partition_index] = (partition.leader_id, now)
        return response

    # --- calls ---

    async def call_any(self, api: Api[Req, Res], request: Req, *, timeout: float | None = None) -> Res:
        """Call any reachable broker."""
        return await self._call(await self._retry(self._any_connection), api, request, timeout)

    async def call_node(
        self, node_id: int, api: Api[Req, Res], request: Req, *, timeout: float | None = None
    ) -> Res:
        return await self._call(await self.connection(node_id), api, request, timeout)

    async def call_leader(
        self, topic: str, partition: int, api: Api[Req, Res], request: Req, *, timeout: float | None = None
    ) -> Res:
        try:
            return await self.call_node(await self.leader(topic, partition), api, request, timeout=timeout)
        except BrokerError:
            self.forget_leaders(topic)
            raise

    async def call_coordinator(
        self, key: str, api: Api[Req, Res], request: Req, *, key_type: int = 0, timeout: float | None = None
    ) -> Res:
        try:
            return await self.call_node(await self.coordinator(key, key_type), api, request, timeout=timeout)
        except BrokerError:
            self.forget_coordinator(key, key_type)
            raise

    async def call_controller(self, api: Api[Req, Res], request: Req, *, timeout: float | None = None) -> Res:
        """Call the broker that creates and changes topics."""
        await self.metadata([])
        if self.controller_id < 0:
            return await self.call_any(api, request, timeout=timeout)
        return await self.call_node(self.controller_id, api, request, timeout=timeout)

    async def connection(self, node_id: int) -> Connection:
        """The connection to a broker, opened if there is none."""
        address = self.brokers.get(node_id)
        opened = None if address is None else self._connections.get(address)
        if opened is not None and _is_usable(opened):
            return opened

        async def attempt() -> Connection:
            if node_id not in self.brokers and not self._is_fixed:
                await self._ask_metadata([])
            if node_id not in self.brokers:
                raise ConnectFailed(*self.bootstrap[0], f"the cluster has no broker {node_id} at the moment")
            try:
                return await self._connect(self.brokers[node_id])
            except ConnectFailed:
                if not self._is_fixed:
                    self.brokers.pop(node_id, None)  # it may have moved: look it up again
                raise

        return await self._retry(attempt)

    async def _call(
        self, connection: Connection, api: Api[Req, Res], request: Req, timeout: float | None
    ) -> Res:
        if self._before_request is not None:
            self._before_request(api)
        try:
            return await connection.call(api, None, request, timeout=timeout or self.timeout)
        except RequestTimedOut:
            await connection.close()  # the broker hangs; the next call reconnects
            raise

    # --- connections ---

    async def _any_connection(self) -> Connection:
        """An open connection, or a new one to the first address that accepts."""
        for connection in self._connections.values():
            if _is_usable(connection):
                return connection
        known = list(dict.fromkeys([*self.brokers.values(), *self.bootstrap]))
        random.shuffle(known)
        failed: list[ConnectFailed] = []
        for address in known:
            try:
                return await self._connect(address)
            except ConnectFailed as error:
                failed.append(error)
        refused = next((error for error in failed if isinstance(error, SecurityFailed)), None)
        if refused is not None:
            raise refused
        failed.sort(key=lambda error: (error.host, error.port))  # the same words each time
        others = "".join(f"; {error}" for error in failed[1:])
        raise ConnectFailed(failed[0].host, failed[0].port, failed[0].problem + others)

    async def _connect(self, address: Address) -> Connection:
        """The connection to an address; tasks that want the same one wait for the same attempt."""
        connection = self._connections.get(address)
        if connection is not None and _is_usable(connection):
            return connection
        if self._is_closed:
            raise ConnectFailed(*address, "the client is closed")
        until, refusal = self._refused.get(address, (0.0, None))
        if refusal is not None and time.monotonic() < until:
            raise type(refusal)(*address, refusal.problem)
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(self._open(address))
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise ConnectFailed(*address, "the client is closed") from None
            raise

    async def _open(self, address: Address) -> Connection:
        try:
            context, login = None, None
            if self._security is not None:
                try:
                    context, login = await asyncio.to_thread(self._security.load)
                except CredentialsError as error:
                    raise CredentialsMissing(*address, str(error)) from None
            connection = await Connection.open(
                *address,
                self.client_id,
                timeout=self.connect_timeout,
                max_response_bytes=self._max_response_bytes,
                ssl=context,
                login=login,
            )
        except SecurityFailed as error:
            self._refused[address] = time.monotonic() + REFUSED_S, error
            raise
        finally:
            del self._opening[address]
        self._refused.pop(address, None)
        if (before := self._connections.get(address)) is not None and not before.is_closed:
            self._retiring.add(task := asyncio.create_task(before.retire()))
            task.add_done_callback(self._retiring.discard)
        self._connections[address] = connection
        return connection

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent attempt (connecting, looking up metadata) until it succeeds or times out."""
        deadline = time.monotonic() + self.retry_timeout
        pause = self._backoff
        while True:
            try:
                return await attempt()
            except SecurityFailed:
                raise
            except (ConnectFailed, ConnectionLost, RequestTimedOut) as error:
                failure: Exception = error
            except ApiError as error:
                if not error.code.retriable or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                failure = error
            pause = min(pause, BACKOFF_MAX_S) * random.uniform(0.8, 1.2)  # not all clients at once
            if self._is_closed or time.monotonic() + pause > deadline:
                raise failure
            await asyncio.sleep(pause)
            pause *= 2


def _is_usable(connection: Connection) -> bool:
    return not connection.is_closed and time.monotonic() < connection.expires


def _leader_in(response: MetadataResponse, name: str, partition: int) -> int:
    for topic in response.topics:
        if topic.name == name and topic.error_code:
            raise ApiError(ErrorCode.of(topic.error_code), f"topic {name}")
        for found in topic.partitions if topic.name == name else ():
            if found.partition_index == partition:
                if found.leader_id < 0:
                    raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name}-{partition} has no leader")
                return found.leader_id
    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{partition} does not exist")
