"""The nodes in ZooKeeper, in the layout of classic Kafka.

    /brokers/ids/N                     live brokers: their addresses
    /brokers/topics/T                  partitions of a topic, and its id
    /consumers/G/ids/C      ephemeral  {"version":1,"subscription":{"T":STREAMS},"pattern":"static","timestamp":"…"}
    /consumers/G/owners/T/P ephemeral  the stream that owns the partition: C-NUMBER
    /consumers/G/offsets/T             the id of the offsets' topic
    /consumers/G/offsets/T/P           the offset of the next message

A claim writes owner and offset in one transaction, so the offset's version changes with each owner. A commit names the
version that its owner saw last: the commit of a former owner fails, whatever happened to its session meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from millstream.consuming.message import Partition
from millstream.errors import BadInput, NotOwned, Unreachable

CONNECT_TIMEOUT_S: Final = 10.0
CALL_TIMEOUT_S: Final = 10.0
log = logging.getLogger("millstream.zookeeper")

KazooError = (KazooException, KazooTimeoutError)
ConnectionFailure = (ConnectionLoss, SessionExpiredError, KazooTimeoutError)


class Registry:
    """One group's nodes, in one client's session. Methods may raise kazoo's errors if the connection fails."""

    def __init__(
        self, hosts: str, group: str, timeout_s: float, options: Mapping[str, Any] | None = None
    ) -> None:
        """Unreachable within seconds if no ZooKeeper responds; BadInput for the address or its chroot.

        ``options``: those of kazoo's client for TLS and SASL.
        """
        self.hosts = hosts
        self._group = group
        self._versions: dict[Partition, tuple[int, int]] = {}  # session and version of the offset's node
        self._subscriptions: dict[str, dict[str, int]] = {}
        try:
            addresses, slash, chroot = hosts.partition("/")
            self.client: Any = KazooClient(hosts=addresses, timeout=timeout_s, **_secured(options or {}))
        except ValueError as error:
            raise BadInput(
                f'zookeeper: "{hosts}" is not allowed ({error})', "write HOST:PORT,…/CHROOT"
            ) from None
        self.timeout_s = 0.0
        self._watch_connections()
        try:
            self.client.start(CONNECT_TIMEOUT_S)
            self.touch()  # kazoo reports a connection before it authenticates it
        except KazooError:
            self.client.stop()
            self.client.close()
            raise Unreachable(
                f"no ZooKeeper answers at {hosts} within {CONNECT_TIMEOUT_S:g} s, or it refuses the connection",
                "start it, name another, or correct zookeeper_config",
            ) from None
        if chroot:
            if not self._do(self.client.exists_async(slash + chroot)):
                self.close()
                raise BadInput(f"zookeeper: {hosts}: there is no /{chroot}", "name the brokers' chroot")
            self.client.chroot = slash + chroot  # given earlier, kazoo would warn if it does not exist

    def _do(self, call: Any) -> Any:
        """The result of one of kazoo's asynchronous calls; its blocking ones may wait for ever."""
        return call.get(timeout=CALL_TIMEOUT_S)

    def _watch_connections(self) -> None:
        """The server may grant another timeout than the requested one; kazoo keeps it to itself.

        And kazoo ends for good if a login fails, be it that the server stops meanwhile. Here it tries again, unless the
        first login is refused; a later refusal ends the session.
        """
        connection = self.client._connection
        connect = connection._connect

        def connected(*args: Any) -> tuple[float, float]:
            try:
                read_ms, connect_ms = connect(*args)
            except (AuthFailedError, SessionClosedRequireSaslError) as error:
                if not isinstance(error.__cause__, ConnectionDropped):
                    if not self.timeout_s:
                        raise AuthFailedError(
                            str(error)
                        ) from None  # of the other error kazoo prints a stack trace
                    log.warning(
                        "ZooKeeper at %s refuses the login, retrying: correct zookeeper_config", self.hosts
                    )
                    self.client._session_callback(KeeperState.EXPIRED_SESSION)
                raise ConnectionDropped("the login failed") from None
            self.timeout_s = read_ms * 1.5 / 1000
            return read_ms, connect_ms

        connection._connect = connected

    @property
    def session(self) -> int | None:
        """The id of the session, which changes after a loss."""
        found = self.client.client_id
        return None if found is None else found[0]  # kazoo's thread may set it to None at any moment

    def touch(self) -> None:
        """A round trip to the leader."""
        self._do(self.client.sync_async("/"))

    # Consumers of the group

    def brokers(self) -> str:
        """The plaintext addresses of live brokers: HOST:PORT,…"""
        nodes = [self._data(f"/brokers/ids/{number}") for number in self._children("/brokers/ids")]
        endpoints = [
            endpoint
            for data in nodes
            if data is not None
            for endpoint in json.loads(data).get("endpoints", ())
        ]
        found = [
            endpoint.removeprefix("PLAINTEXT://")
            for endpoint in endpoints
            if endpoint.startswith("PLAINTEXT://")
        ]
        if not found:
            raise Unreachable("no broker with a plaintext listener is registered in ZooKeeper", "start one")
        return ",".join(found)

    def register(self, consumer: str, subscription: Mapping[str, int]) -> None:
        """The consumer's own node, in this session."""
        value = {
            "version": 1,
            "subscription": dict(subscription),
            "pattern": "static",
            "timestamp": str(int(time.time() * 1000)),
        }
        path, data = f"/consumers/{self._group}/ids/{consumer}", json.dumps(value).encode()
        self._do(self.client.ensure_path_async(f"/consumers/{self._group}/ids"))
        try:
            self._do(self.client.create_async(path, data, ephemeral=True))
        except NodeExistsError:
            if not self._is_ours(path):  # from the previous session
                self._do(self.client.delete_async(path))
                self._do(self.client.create_async(path, data, ephemeral=True))

    def unregister(self, consumer: str) -> None:
        self._delete(f"/consumers/{self._group}/ids/{consumer}")

    def read(
        self, topics: Collection[str], changed: Callable[[Any], object]
    ) -> tuple[dict[str, dict[str, int]], dict[str, tuple[int, ...]]]:
        """The group's consumers with their streams by topic, and the topics' partitions; watches are set on all."""
        found: dict[str, tuple[int, ...]] = {}
        for topic in topics:
            description = self._renewed(topic, changed)
            found[topic] = tuple(map(int, description.get("partitions", {})))
        self._children("/brokers/ids", changed)
        known, self._subscriptions = self._subscriptions, {}
        for consumer in self._children(f"/consumers/{self._group}/ids", changed):
            if consumer in known:  # such a node never changes
                self._subscriptions[consumer] = known[consumer]
            elif (data := self._data(f"/consumers/{self._group}/ids/{consumer}")) is not None:
                self._subscriptions[consumer] = _subscription(data)
        return self._subscriptions, found

    def _renewed(self, topic: str, changed: Callable[[Any], object]) -> dict[str, Any]:
        """The topic from its node, once the offsets belong to this topic and not to another of the same name.

        The offsets' node is read before the topic's: if nobody has written it since, the topic's id is the newer one.
        """
        path = self._offsets(topic)
        while True:
            offsets = self._stat(path)
            description = self._topic(topic, changed)
            topic_id = str(description.get("topic_id", ""))
            if not topic_id or self._renew_offsets(path, offsets, topic_id):
                return description

    def _topic(self, topic: str, changed: Callable[[Any], object]) -> dict[str, Any]:
        path = f"/brokers/topics/{topic}"
        try:
            data, _ = self._do(self.client.get_async(path, watch=changed))
        except NoNodeError:
            self._do(self.client.exists_async(path, watch=changed))
            return {}
        found: dict[str, Any] = json.loads(data)
        return found

    def _renew_offsets(self, path: str, offsets: Any, topic_id: str) -> bool:
        """Delete offsets of a deleted topic of the same name; False if ``offsets``, the node as read, is outdated.

        Other consumers do the same, and only the first one may delete.
        """
        if offsets is None:
            self._do(self.client.ensure_path_async(path))
            return False
        known, stat = offsets
        if known.decode() == topic_id:
            return True
        transaction = self.client.transaction()
        transaction.set_data(path, topic_id.encode(), stat.version)
        for number in self._children(path) if known else ():
            transaction.delete(f"{path}/{number}")
        for failure in _failures(self._do(transaction.commit_async())):
            if not isinstance(failure, BadVersionError | NoNodeError):
                raise failure
            return False
        return True

    # Owners and offsets

    def claim(self, at: Partition, thread: str) -> bool:
        """Own a partition if nobody does; from then on no commit of an earlier owner succeeds.

        True also if the thread owns it in this session already: an earlier claim may have had no response.
        """
        self._versions.pop(at, None)
        owner, offset = self._owner(at), f"{self._offsets(at[0])}/{at[1]}"
        for path in (owner, offset):
            self._do(self.client.ensure_path_async(path.rpartition("/")[0]))
        session = self.session
        found = self._stat(offset)
        transaction = self.client.transaction()
        transaction.create(owner, thread.encode(), ephemeral=True)
        if found is not None:
            transaction.set_data(offset, found[0], found[1].version)
        results = self._do(transaction.commit_async())
        failures = _failures(results)
        if any(isinstance(failure, ConnectionFailure) for failure in failures):
            raise failures[0]
        if failures:
            return self._is_ours(owner) and self._data(owner) == thread.encode()
        if found is not None:
            self._versions[at] = (session or 0, found[1].version + 1)
        return True

    def release(self, at: Partition) -> None:
        """Give a partition up; nothing happens if another stream owns it."""
        self._versions.pop(at, None)
        path = self._owner(at)
        if self._is_ours(path):
            self._delete(path)

    def offset(self, at: Partition) -> int | None:
        """The committed offset; None without one."""
        found = self._data(f"{self._offsets(at[0])}/{at[1]}")
        return int(found) if found else None

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Store all positions or none; NotOwned if one of the partitions has, or had, another owner."""
        transaction = self.client.transaction()
        session = self.session or 0
        expected: dict[Partition, int] = {}
        for at, position in positions.items():
            transaction.check(self._owner(at), 0)
            path = f"{self._offsets(at[0])}/{at[1]}"
            if (known := self._versions.get(at)) is not None and known[0] == session:
                expected[at] = known[1] + 1
                transaction.set_data(path, str(position).encode(), known[1])
            else:
                if not self._is_ours(self._owner(at)):
                    raise NotOwned(f"{at[0]}-{at[1]} has another owner", "its position was not committed")
                found = self._stat(path)
                if found is None:
                    expected[at] = 0
                    transaction.create(path, str(position).encode())
                else:
                    expected[at] = found[1].version + 1
                    transaction.set_data(path, str(position).encode(), found[1].version)
        for at in positions:
            self._versions.pop(at, None)  # unknown until there is a response
        failures = _failures(self._do(transaction.commit_async()))
        if failures:
            if any(isinstance(failure, ConnectionFailure) for failure in failures):
                raise failures[0]
            raise NotOwned(
                f"{', '.join(f'{topic}-{number}' for topic, number in positions)}: another consumer has taken over",
                "the positions were not committed",
            )
        self._versions.update({at: (session, version) for at, version in expected.items()})

    def forget(self) -> None:
        """The session is over: no version is ours."""
        self._versions.clear()

    def close(self) -> None:
        """End the session at once: its ephemeral nodes are deleted."""
        self.client.stop()
        self.client.close()

    def _owner(self, at: Partition) -> str:
        return f"/consumers/{self._group}/owners/{at[0]}/{at[1]}"

    def _offsets(self, topic: str) -> str:
        return f"/consumers/{self._group}/offsets/{topic}"

    def _is_ours(self, path: str) -> bool:
        found = self._do(self.client.exists_async(path))
        return found is not None and found.ephemeralOwner == self.session

    def _stat(self, path: str) -> Any:
        try:
            return self._do(self.client.get_async(path))
        except NoNodeError:
            return None

    def _data(self, path: str) -> bytes | None:
        found = self._stat(path)
        return None if found is None else found[0]

    def _children(self, path: str, watch: Callable[[Any], object] | None = None) -> list[str]:
        try:
            found: list[str] = self._do(self.client.get_children_async(path, watch=watch))
        except NoNodeError:
            return []
        return sorted(found)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(NoNodeError):
            self._do(self.client.delete_async(path))


def _failures(results: list[Any]) -> list[Exception]:
    """The failures of a transaction, without operations that only did not happen because another failed."""
    failed = [result for result in results if isinstance(result, Exception)]
    return [
        failure for failure in failed if not isinstance(failure, RolledBackError | RuntimeInconsistency)
    ] or failed


def _secured(options: Mapping[str, Any]) -> dict[str, Any]:
    """kazoo's options, by which a server's certificate must be for its host."""
    verifies = options.get("use_ssl", False) and options.get("verify_certs", True)
    return {"check_hostname": verifies, **options}


def _subscription(data: bytes) -> dict[str, int]:
    """A consumer's streams by topic; an unreadable node subscribes to nothing."""
    try:
        found = json.loads(data)["subscription"]
        return {str(topic): int(count) for topic, count in found.items() if 0 < int(count) <= 1000}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
