"""The cluster that is attacked: three brokers, four listeners each, users with few rights, and what nobody may read.

    CLEAR     SASL without TLS           MUTUAL    TLS with client certificates
    SECURE    SASL over TLS              BROKERS   for brokers; clients have no rights there

HIDDEN things have names that no attacker ever sends; their names, and every record's value, may be in no response to
them. The topic SECRET is known by its name.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from kazoo.client import KazooClient

from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import STABLE, ClusterProcesses
from millstream_harness.wire import fetch_request, produce_request, record
from millstream_kafka.acl import CLUSTER_NAME, AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.batch import build_batch, iter_batches, read_records
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_topics,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
    fetch,
    list_groups,
    list_offsets,
    offset_commit,
    produce,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..secured import Secured, allow, set_passwords

LISTENERS = {"CLEAR": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "MUTUAL": "SSL", "BROKERS": "PLAINTEXT"}
STEADY, OWN, SECRET = "steady", "own", "secret"
REGULAR, MALLORY, CLERK = "regular", "mallory", "clerk"
ABSURD = "absurd"
"""Part of every name that a hostile administrator creates: all of them are removed at the end."""
PARTITIONS = 3
PATIENCE_S = 60.0
PAUSE_S = 0.2
NOTES = ("/config/changes", "/kafka-acl-changes", "/kafka-acl-extended-changes")
"""Folders of notes, which expire after a quarter of an hour."""
QUOTAS = {"request_percentage": 10.0, "producer_byte_rate": 1e6, "consumer_byte_rate": 1e6}

T = TypeVar("T")


class Canaries(NamedTuple):
    """Texts that may be in no response to somebody without the right."""

    value: str
    topic: str
    group: str
    user: str


class HostileCluster(ClusterProcesses):
    """Brokers 1 to 3."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.secured = Secured(folder / "secured", range(1, size + 1))
        self.ports = {number: {name: fixed_port() for name in LISTENERS} for number in range(1, size + 1)}
        super().__init__(folder, size, {**STABLE, "auto.create.topics.enable": "true"})

    def broker(self, number: int, **config: str) -> BrokerProcess:
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports[number].items())
        settings = {
            "broker.id": str(number),
            **self.config,
            "listeners": listeners,
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
            "inter.broker.listener.name": "BROKERS",
            "listener.name.mutual.ssl.client.auth": "required",
            **self.secured.config(number, "CLEAR", "SECURE"),
            **config,
        }
        return BrokerProcess(self.folder / f"broker-{number}", settings)

    def addresses(self, listener: str) -> list[str]:
        return [f"127.0.0.1:{ports[listener]}" for ports in self.ports.values()]


class Lab:
    """The cluster, and its administrator."""

    def __init__(self, folder: Path) -> None:
        self.cluster = HostileCluster(folder)
        self.secured = self.cluster.secured
        self.passwords = {name: secrets.token_hex(12) for name in (REGULAR, MALLORY, CLERK)}
        self.absurd = 0
        """How many rules and users a hostile administrator has created."""
        token = secrets.token_hex(8)
        self.canaries = Canaries(*(f"hidden-{part}-{token}" for part in Canaries._fields))

    def client(self, user: str | None = None) -> ClusterClient:
        """A client of a user, or of the administrator, on SECURE."""
        security = self.secured.admin() if user is None else self.secured.user(user, self.passwords[user])
        return ClusterClient(
            ",".join(self.cluster.addresses("SECURE")), user or "admin", security=security, timeout=30.0
        )

    async def prepare(self) -> None:
        async with self.client() as admin:
            for name in (STEADY, OWN, SECRET, self.canaries.topic):
                await patiently(lambda name=name: self._create(admin, name))  # type: ignore[misc]
            for name in (SECRET, self.canaries.topic):
                await patiently(lambda name=name: self._write(admin, name))  # type: ignore[misc]
            await patiently(lambda: self._commit(admin))
            await set_passwords(admin, {**self.passwords, self.canaries.user: secrets.token_hex(12)})
            read, write, topic, group = (
                AclOperation.READ,
                AclOperation.WRITE,
                ResourceType.TOPIC,
                ResourceType.GROUP,
            )
            await allow(admin, REGULAR, topic, STEADY, read, write)
            await allow(admin, REGULAR, group, STEADY, read)
            await allow(admin, MALLORY, topic, OWN, read, write)
            await allow(admin, MALLORY, group, OWN, read)
            administers = AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE
            await allow(admin, CLERK, ResourceType.CLUSTER, CLUSTER_NAME, *administers)
            await allow(admin, self.canaries.user, topic, self.canaries.topic, read)
            await self.limit(admin, MALLORY)

    async def limit(self, admin: ClusterClient, user: str) -> None:
        ops = [alter_client_quotas.QuotaOperation(key, value) for key, value in QUOTAS.items()]
        entity = [describe_client_quotas.QuotaEntity("user", user)]
        request = alter_client_quotas.AlterClientQuotasRequest(
            [alter_client_quotas.QuotaAlteration(entity, ops)], False
        )
        answer = await admin.call_any(alter_client_quotas.API, request)
        assert not answer.entries[0].error_code, answer.entries[0].error_message

    async def _create(self, admin: ClusterClient, name: str) -> None:
        configs = {"segment.bytes": "1000000", "retention.bytes": "5000000", "file.delete.delay.ms": "1000"}
        wanted = create_topics.CreatableTopic(
            name,
            PARTITIONS,
            3,
            configs=[create_topics.CreatableTopicConfig(*each) for each in configs.items()]
            if name == OWN
            else [],
        )
        answer = await admin.call_controller(
            create_topics.API, create_topics.CreateTopicsRequest([wanted], 30_000)
        )
        if (code := answer.topics[0].error_code) not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ApiError(ErrorCode.of(code), answer.topics[0].error_message or "")

    async def _write(self, admin: ClusterClient, name: str) -> None:
        request = produce_request(name, build_batch([record(self.canaries.value)]), acks=-1)
        answer = await admin.call_leader(name, 0, produce.BY_NAME, request)
        _check(answer.responses[0].partition_responses[0].error_code)

    async def _commit(self, admin: ClusterClient) -> None:
        wanted = [offset_commit.OffsetCommitRequestPartition(0, 1, -1, None)]
        topics = [offset_commit.OffsetCommitRequestTopic(self.canaries.topic, partitions=wanted)]
        request = offset_commit.OffsetCommitRequest(self.canaries.group, topics=topics)
        answer = await admin.call_coordinator(self.canaries.group, offset_commit.BY_NAME, request)
        if code := answer.topics[0].partitions[0].error_code:
            admin.forget_coordinator(self.canaries.group)
            _check(code)

    async def state(self) -> Mapping[str, Any]:
        """What the administrator sees: nobody may have changed it."""
        async with self.client() as admin:
            topics = (await admin.metadata(None)).topics
            any_acl = describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1)
            acls = (await admin.call_any(describe_acls.API, any_acl)).resources
            users = await admin.call_any(
                describe_user_scram_credentials.API,
                describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None),
            )
            quotas = await admin.call_any(
                describe_client_quotas.API, describe_client_quotas.DescribeClientQuotasRequest([], False)
            )
            groups = set()
            for number in self.cluster.brokers:
                listed = await admin.call_node(number, list_groups.API, list_groups.ListGroupsRequest())
                groups |= {group.group_id for group in listed.groups}
            ends = {}
            for name in (SECRET, self.canaries.topic):
                for partition in range(PARTITIONS):
                    ends[f"{name}-{partition}"] = await self._end(admin, name, partition)
            return {
                "topics": sorted(
                    (topic.name, str(topic.topic_id), len(topic.partitions)) for topic in topics
                ),
                "rules": sorted(map(repr, acls)),
                "users": sorted(result.user for result in users.results),
                "quotas": sorted(map(repr, quotas.entries or ())),
                "groups": sorted(groups - {OWN, STEADY}),
                "ends": ends,
            }

    async def _end(self, admin: ClusterClient, name: str, partition: int) -> int:
        wanted = [list_offsets.ListOffsetsTopic(name, [list_offsets.ListOffsetsPartition(partition, -1, -1)])]
        request = list_offsets.ListOffsetsRequest(-1, 0, wanted)
        answer = await admin.call_leader(name, partition, list_offsets.API, request)
        offset: int = answer.topics[0].partitions[0].offset
        return offset

    async def stored(self, topic: str) -> dict[int, dict[int, str]]:
        """The values of all records by partition and offset."""
        async with self.client() as admin:
            found = {}
            for partition in range(PARTITIONS):
                found[partition] = await self._stored(admin, topic, partition)
            return found

    async def _stored(self, admin: ClusterClient, topic: str, partition: int) -> dict[int, str]:
        found: dict[int, str] = {}
        end, offset = await self._end(admin, topic, partition), 0
        while offset < end:
            request = fetch_request(topic, offset, partition, partition_max_bytes=1 << 20)
            answer = await admin.call_leader(topic, partition, fetch.BY_NAME, request)
            part = answer.responses[0].partitions[0]
            _check(part.error_code)
            data = cast(bytes, part.records or b"")
            for position, header in iter_batches(data):
                for each in read_records(data[position : position + header.size]):
                    found[each.offset] = (each.value or b"").decode(errors="replace")
                offset = header.next_offset
        return found

    async def remove_absurd(self) -> None:
        """Remove what the hostile administrator was allowed to create."""
        async with self.client() as admin:
            while deletions := await self._absurd_credentials(admin):
                request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(deletions[:200])
                answer = await admin.call_any(alter_user_scram_credentials.API, request)
                for each in answer.results:
                    _check(each.error_code)
            for kind in (f"User:{ABSURD}", f"{ABSURD}:"):
                await self._remove_rules(admin, kind)
            found = await admin.call_any(
                describe_client_quotas.API, describe_client_quotas.DescribeClientQuotasRequest([], False)
            )
            for entry in found.entries or ():
                if any(ABSURD in (one.entity_name or "") for one in entry.entity):
                    entity = [
                        describe_client_quotas.QuotaEntity(one.entity_type, one.entity_name)
                        for one in entry.entity
                    ]
                    ops = [alter_client_quotas.QuotaOperation(value.key, 0.0, True) for value in entry.values]
                    alteration = alter_client_quotas.QuotaAlteration(entity, ops)
                    await admin.call_any(
                        alter_client_quotas.API,
                        alter_client_quotas.AlterClientQuotasRequest([alteration], False),
                    )

    async def _absurd_credentials(
        self, admin: ClusterClient
    ) -> list[alter_user_scram_credentials.ScramCredentialDeletion]:
        """One of each user: a request names a user once, and some have a credential of each mechanism."""
        users = await admin.call_any(
            describe_user_scram_credentials.API,
            describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None),
        )
        return [
            alter_user_scram_credentials.ScramCredentialDeletion(result.user, info.mechanism)
            for result in users.results
            if ABSURD in result.user
            for info in result.credential_infos[:1]
        ]

    async def _remove_rules(self, admin: ClusterClient, start: str) -> None:
        any_acl = describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1)
        found = (await admin.call_any(describe_acls.API, any_acl)).resources
        principals = sorted({acl.principal for resource in found for acl in resource.acls})
        filters = [
            delete_acls.DeleteAclsFilter(1, None, PatternType.ANY, principal, None, 1, PermissionType.ANY)
            for principal in principals
            if principal.startswith(start)
        ]
        while filters:
            await admin.call_any(delete_acls.API, delete_acls.DeleteAclsRequest(filters[:50]), timeout=120.0)
            filters = filters[50:]

    def nodes(self) -> tuple[int, int]:
        """The number of nodes in ZooKeeper, without notes, and of notes."""
        client = KazooClient(self.cluster.connect)
        client.start()
        try:
            total = _count(client, "/")
            notes = sum(_count(client, path) for path in NOTES if client.exists(path))
            return total - notes, notes
        finally:
            client.stop()
            client.close()


def _count(client: KazooClient, path: str) -> int:
    children = client.get_children(path)
    return 1 + sum(_count(client, f"{path.rstrip('/')}/{child}") for child in children)


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat until it works: leaders are elected, topics become known. Raises the last error."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await attempt()
        except (ApiError, BrokerError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_S)


def _check(code: int) -> None:
    if code:
        raise ApiError(ErrorCode.of(code))
