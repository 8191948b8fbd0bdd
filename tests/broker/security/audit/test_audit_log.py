"""The audit log of a broker: who did what, from where, and how it ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from millstream_broker.broker import Broker, StartError
from millstream_broker.security.audit.limits import audit_limits
from millstream_broker.security.audit.lines import LONGEST, line
from millstream_broker.security.audit.trail import AuditLog, AuditTrail
from millstream_broker.security.audit.writer import Writer
from millstream_broker.security.session import ClientSession
from millstream_harness.in_process import create, running
from millstream_kafka.acl import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import ConnectFailed
from millstream_kafka.client.sasl import Login
from millstream_kafka.protocol import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    create_topics,
    delete_acls,
    delete_topics,
    fetch,
    incremental_alter_configs,
    metadata,
    produce,
    sasl_handshake,
    update_metadata,
)
from millstream_kafka.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream_kafka.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PASSWORDS = {"admin": "entrance", "alice": "doorway"}
SECRETS = (*PASSWORDS.values(), "guessed", "hidden value", "salt of it", "salted one")
ALLOW = PermissionType.ALLOW


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    config = {
        "listeners": "CLIENTS://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.clients.plain.sasl.jaas.config": f"a.PlainLoginModule required {users};",
        "connection.failed.authentication.delay.ms": "0",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:admin",
        "audit.log": str(tmp_path / "audit.json"),
    }
    async with running(tmp_path / "data", config) as broker:
        yield broker


async def login(broker: Broker, user: str, password: str | None = None) -> Connection:
    (of_broker,) = broker.replicas.metadata.state.brokers.values()
    (listener,) = (each for each in of_broker.listeners if each.name == "CLIENTS")
    return await Connection.open(
        listener.host,
        listener.port,
        f"client-of-{user}",
        login=Login("PLAIN", user, PASSWORDS[user] if password is None else password),
    )


async def allow(broker: Broker, pattern: ResourcePattern, *operations: AclOperation) -> None:
    entries = frozenset(AccessControlEntry("User:alice", "*", each, ALLOW) for each in operations)
    assert await broker.coordination.change_acls({pattern: lambda stored: entries}) == {}


async def finish(broker: Broker) -> None:
    """Have the last lines written."""
    assert broker.audit_trail.log is not None
    await broker.audit_trail.log.close()


def events(path: Path, **wanted: object) -> list[dict[str, Any]]:
    """The lines that were written; none has a secret."""
    text = (path / "audit.json").read_text("ascii")
    assert not [secret for secret in SECRETS if secret in text]
    found = [json.loads(each) for each in text.splitlines()]
    return [each for each in found if wanted.items() <= each.items()]


def shown(found: Sequence[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(each.get(name) for name in names) for each in found]


async def test_logins_are_recorded(broker: Broker, tmp_path: Path) -> None:
    await (await login(broker, "admin")).close()
    with pytest.raises(ConnectFailed):
        await login(broker, "alice", "guessed")
    (of_broker,) = broker.replicas.metadata.state.brokers.values()
    client = await Connection.open(of_broker.listeners[0].host, of_broker.listeners[0].port, "curious")
    await client.call(sasl_handshake.API, 1, sasl_handshake.SaslHandshakeRequest("GSSAPI"))
    await client.close()
    await finish(broker)
    where = {"event": "login", "host": "127.0.0.1", "listener": "CLIENTS", "broker": 1}
    succeeded, failed, unknown = events(tmp_path, **where)
    assert shown([succeeded], "outcome", "principal", "client_id", "mechanism") == [
        ("succeeded", "User:admin", "client-of-admin", "PLAIN")
    ]
    assert shown([failed], "outcome", "user", "client_id", "mechanism", "reason") == [
        ("failed", "alice", "client-of-alice", "PLAIN", "credentials")
    ]
    assert shown([unknown], "outcome", "client_id", "mechanism", "reason") == [
        ("failed", "curious", None, "mechanism")
    ]
    assert broker.audit_trail.logins == {"PLAIN": 1}
    assert broker.audit_trail.login_failures == {("PLAIN", "credentials"): 1, ("other", "mechanism"): 1}


async def test_administrative_requests_are_recorded_with_their_end(broker: Broker, tmp_path: Path) -> None:
    admin = await login(broker, "admin")
    await create(admin, "orders", 3, retention_ms="1000")
    topic = create_topics.CreatableTopic("orders", 1, 1)
    await admin.call(create_topics.API, 7, create_topics.CreateTopicsRequest([topic], 10_000))
    changed = incremental_alter_configs.AlterConfigsResource(
        4, "1", [incremental_alter_configs.AlterableConfig("ssl.key.password", 0, "hidden value")]
    )
    configs = incremental_alter_configs.IncrementalAlterConfigsRequest([changed])
    await admin.call(incremental_alter_configs.API, 1, configs)
    rule = create_acls.AclCreation(2, "orders", 3, "User:alice", "*", 3, 3)
    await admin.call(create_acls.API, 3, create_acls.CreateAclsRequest([rule]))
    which = delete_acls.DeleteAclsFilter(2, "orders", 3, None, None, 1, 1)
    await admin.call(delete_acls.API, 3, delete_acls.DeleteAclsRequest([which]))
    credential = alter_user_scram_credentials.ScramCredentialUpsertion(
        "bob", 1, 4096, b"salt of it", b"salted one"
    )
    users = alter_user_scram_credentials.AlterUserScramCredentialsRequest([], [credential])
    await admin.call(alter_user_scram_credentials.API, 0, users)
    quota = alter_client_quotas.QuotaAlteration(
        [alter_client_quotas.QuotaEntity("user", "bob")],
        [alter_client_quotas.QuotaOperation("producer_byte_rate", 1000.0)],
    )
    await admin.call(alter_client_quotas.API, 1, alter_client_quotas.AlterClientQuotasRequest([quota]))
    gone = [delete_topics.DeleteTopicState("orders"), delete_topics.DeleteTopicState("missing")]
    await admin.call(delete_topics.API, 6, delete_topics.DeleteTopicsRequest(gone, [], 10_000))
    await admin.close()
    await finish(broker)
    who = {"event": "administrative", "principal": "User:admin", "client_id": "client-of-admin"}
    assert shown(events(tmp_path, **who), "api", "outcome", "resources", "errors") == [
        ("CreateTopics", "succeeded", ["Topic orders: 3 partitions"], None),
        (
            "CreateTopics",
            "failed",
            ["Topic orders: 1 partitions"],
            {"TOPIC_ALREADY_EXISTS": ["orders 00000000-0000-0000-0000-000000000000"]},
        ),
        ("IncrementalAlterConfigs", "failed", ["Broker 1: ssl.key.password"], {"INVALID_REQUEST": ["1"]}),
        (
            "CreateAcls",
            "succeeded",
            ["Topic orders: Literal, Allow Read to User:alice from *"],
            None,
        ),
        (
            "DeleteAcls",
            "succeeded",
            ["Topic orders: Literal, Any Any to any principal from any host"],
            None,
        ),
        ("AlterUserScramCredentials", "succeeded", ["User bob: SCRAM-SHA-256 set"], None),
        ("AlterClientQuotas", "succeeded", ["Quota user bob: producer_byte_rate"], None),
        (
            "DeleteTopics",
            "failed",
            ["Topic orders", "Topic missing"],
            {"UNKNOWN_TOPIC_OR_PARTITION": ["missing 00000000-0000-0000-0000-000000000000"]},
        ),
    ]


async def test_denied_requests_are_recorded_and_others_are_not(broker: Broker, tmp_path: Path) -> None:
    admin, alice = await login(broker, "admin"), await login(broker, "alice")
    await create(admin, "seen")
    await create(admin, "hidden")
    await admin.close()
    read = AclOperation.READ
    await allow(broker, ResourcePattern(ResourceType.TOPIC, "seen"), read, AclOperation.CREATE)
    await alice.call(metadata.API, 9, metadata.MetadataRequest(None))
    topics = [
        FetchTopic(name, partitions=[FetchPartition(0, -1, 0, -1, -1, 100)]) for name in ("seen", "hidden")
    ]
    await alice.call(fetch.API, 12, FetchRequest(topics=topics, max_wait_ms=0, min_bytes=0))
    records = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[TopicProduceData("seen", partition_data=[PartitionProduceData(0, b"")])],
    )
    await alice.call(produce.API, 9, records)
    named = metadata.MetadataRequest([metadata.MetadataRequestTopic(name="hidden")])
    await alice.call(metadata.API, 9, named)
    rule = create_acls.AclCreation(2, "t", 3, "User:alice", "*", 3, 3)
    await alice.call(create_acls.API, 3, create_acls.CreateAclsRequest([rule]))
    await alice.call(
        create_topics.API, 7, create_topics.CreateTopicsRequest([create_topics.CreatableTopic("seen", 1, 1)])
    )
    await alice.call(update_metadata.API, None, update_metadata.UpdateMetadataRequest())
    await alice.close()
    await finish(broker)
    who = {
        "event": "denied",
        "principal": "User:alice",
        "client_id": "client-of-alice",
        "listener": "CLIENTS",
    }
    assert shown(events(tmp_path, **who), "api", "operation", "resource_type", "resource") == [
        ("Fetch", "Read", "Topic", "hidden"),
        ("Produce", "Write", "Topic", "seen"),
        ("Metadata", "Describe", "Topic", "hidden"),
        ("CreateAcls", "Alter", "Cluster", CLUSTER_NAME),
        ("UpdateMetadata", "ClusterAction", "Cluster", CLUSTER_NAME),
    ]
    assert broker.audit_trail.denials["Fetch"] == 1
    (refused,) = events(tmp_path, event="administrative", api="CreateAcls")
    assert refused["errors"] == {"CLUSTER_AUTHORIZATION_FAILED": [""]}


async def test_hostile_names_stay_in_their_line_and_floods_in_their_limit() -> None:
    lines: list[bytes] = []
    name = 'x\n{"event": "login"}\r\x1b[2J\u2028\ud800' + "y" * 40_000
    trail = AuditTrail(AuditLog(1, audit_limits(100), Writer(lines.append)))
    session = ClientSession(f"User:{name}", None, "CLIENTS", "10.0.0.1", client_id=name)
    for _ in range(100_000):
        trail.denied("Fetch", session, AclOperation.READ, ResourceType.TOPIC, name)
    assert trail.log is not None
    await trail.log.close()
    assert 101 <= len(lines) < 1000, "the burst of one source, and the count of the others"
    for found in lines:
        assert found.endswith(b"\n")
        assert found.count(b"\n") == 1
        assert found.isascii()
        assert b"\x1b" not in found
        assert len(found) < 4 * 6 * LONGEST + 1000
    last = json.loads(lines[-1])
    left_out = 100_000 - (len(lines) - 1)
    assert (last["event"], last["kind"], last["count"]) == ("suppressed", "denied", left_out)
    assert (trail.log.suppressed["denied"], trail.denials["Fetch"]) == (left_out, 100_000)


async def test_all_addresses_of_an_ipv6_network_are_one_source_of_failed_logins() -> None:
    lines: list[bytes] = []
    trail = AuditTrail(AuditLog(1, audit_limits(1), Writer(lines.append)))
    for number in range(1000):
        session = ClientSession("User:ANONYMOUS", None, "CLIENTS", f"2001:db8:0:1::{number:x}")
        trail.login_failed(session, "PLAIN", "credentials", "alice", "")
    assert trail.log is not None
    await trail.log.close()
    admitted, last = map(json.loads, lines)
    assert (admitted["event"], admitted["host"]) == ("login", "2001:db8:0:1::0")
    assert (last["count"], last["host"]) == (999, "2001:db8:0:1::/64")


def test_a_line_has_no_empty_fields_and_names_the_logger() -> None:
    found = json.loads(line(7, 0.0, "denied", {"principal": "User:a", "client_id": None, "errors": {}}))
    assert found == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "logger": "millstream.audit",
        "broker": 7,
        "event": "denied",
        "principal": "User:a",
    }


async def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"audit\.log=/missing/audit\.json: .*: No such file.*stdout, or off"
    ):
        async with running(tmp_path, {"audit.log": "/missing/audit.json"}):
            pass


@pytest.mark.parametrize(
    ("config", "is_on"),
    [
        ({}, False),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, True),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "audit.log": "off"}, False),
        ({"audit.log": "stdout"}, True),
    ],
)
async def test_it_is_on_where_clients_are_checked(
    tmp_path: Path, config: dict[str, str], is_on: bool
) -> None:
    async with running(tmp_path, config) as broker:
        assert (broker.audit_trail.log is not None) is is_on
