"""Our own client administers users, access rules and quotas of Apache Kafka, and logs in by token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.kafka import KafkaProcess
from millstream_harness.scenario import unique
from millstream_harness.secured_kafka import USER, guarded_kafka, unsigned_token
from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.admin.access import Acl, AclFilter, QuotaChange, ScramCredential, ScramUser, quota_of
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import NewTopic
from millstream_kafka.client import (
    OAUTHBEARER,
    AuthenticationFailed,
    ClusterClient,
    Credential,
    Sasl,
    Security,
)
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.scram_mechanism import ScramMechanism

pytestmark = pytest.mark.soak

SHA_256, SHA_512 = ScramMechanism


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as broker:
        yield broker


async def shows(
    describe: Callable[[], Awaitable[Any]], expected: Any, part: Callable[[Any], Any] = lambda x: x
) -> None:
    """Wait until a broker, which learns of changes from the controller, describes what is expected."""
    deadline = time.monotonic() + 30
    while part(found := await describe()) != expected:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


def value(text: str) -> Credential:
    return Credential("sasl", "its value", value=text)


def logging_in(kafka: KafkaProcess, user: str, password: str) -> ClusterClient:
    login = Sasl(SHA_512.label, value(user), value(password))
    return ClusterClient(kafka.addresses["CLEAR"], security=Security(sasl=login))


def a_rule(user: str, name: str, operation: AclOperation = AclOperation.READ) -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.PREFIXED
    return Acl(kind, name, pattern, f"User:{user}", "*", operation, PermissionType.ALLOW)


async def test_credential_set_by_our_client_logs_in_until_it_is_deleted(kafka: KafkaProcess) -> None:
    user, other = unique("user"), unique("other")
    async with ClusterClient(kafka.bootstrap) as cluster:
        admin = AdminClient(cluster)
        credential = ScramCredential.of_password(user, SHA_512, "open sesame", iterations=8192)
        assert await admin.alter_scram_credentials([credential]) == {user: None}
        await shows(lambda: admin.scram_credentials([user, other]), {user: {SHA_512: 8192}})
        async with logging_in(kafka, user, "open sesame") as theirs:
            assert (await theirs.metadata([])).brokers
        async with logging_in(kafka, user, "open sesame!") as theirs:
            with pytest.raises(AuthenticationFailed, match="refused user name or password"):
                await theirs.metadata([])
        both = await admin.alter_scram_credentials(
            [ScramCredential.of_password(other, SHA_256, "a")],
            [ScramUser(user, SHA_512), ScramUser(user, SHA_256)],
        )
        assert both[other] is None
        assert (refusal := both[user])
        assert refusal.error == "DUPLICATE_RESOURCE"
        assert await admin.alter_scram_credentials((), [ScramUser(user, SHA_512)]) == {user: None}
        await shows(lambda: admin.scram_credentials(), False, lambda found: user in found)
        again = await admin.alter_scram_credentials((), [ScramUser(user, SHA_512)])
        assert (refusal := again[user])
        assert refusal.error == "RESOURCE_NOT_FOUND"
        assert await admin.scram_credentials([]) == {}


async def test_rules_are_created_described_and_deleted_one_by_one(kafka: KafkaProcess) -> None:
    user, prefix = unique("user"), unique("t")
    async with ClusterClient(kafka.bootstrap) as cluster:
        admin = AdminClient(cluster)
        read, write = a_rule(user, prefix), a_rule(user, prefix, AclOperation.WRITE)
        impossible = read._replace(resource_type=ResourceType.CLUSTER, name="not-the-cluster")
        done = await admin.create_acls([read, write, impossible])
        assert (done.pop(read), done.pop(write)) == (None, None)
        assert (refusal := done[impossible])
        assert refusal.error == "INVALID_REQUEST"
        assert await admin.create_acls([read]) == {read: None}
        of_user = AclFilter(principal=f"User:{user}")
        await shows(lambda: admin.acls(of_user), {read, write}, set)
        assert await admin.delete_acls([AclFilter.only(write)]) == [write]
        await shows(lambda: admin.acls(of_user), [read])
        assert read in await admin.acls()
        assert str(read) == f"ALLOW User:{user} READ on TOPIC {prefix} (PREFIXED) from *"
        assert await admin.delete_acls([of_user]) == [read]
        assert (await admin.create_acls([]), await admin.delete_acls([])) == ({}, [])


async def test_quotas_are_set_described_and_removed(kafka: KafkaProcess) -> None:
    user, client = quota_of(user=unique("user")), quota_of(user=unique("user"), client_id=None)
    async with ClusterClient(kafka.bootstrap) as cluster:
        admin = AdminClient(cluster)
        rates = {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
        assert await admin.alter_quotas(
            {user: QuotaChange(rates), client: QuotaChange({"consumer_byte_rate": 1.0})}
        ) == {user: None, client: None}
        await shows(lambda: admin.quotas("user"), rates, lambda found: found.get(user))
        assert client not in await admin.quotas("user")
        await shows(admin.quotas, {"consumer_byte_rate": 1.0}, lambda found: found.get(client))
        checked = await admin.alter_quotas({user: QuotaChange({"no_such_key": 1.0})}, validate_only=True)
        assert (refusal := checked[user])
        assert refusal.error == "INVALID_REQUEST"
        await admin.alter_quotas({user: QuotaChange({"request_percentage": 13}, ["producer_byte_rate"])})
        await shows(lambda: admin.quotas("user"), {"request_percentage": 13.0}, lambda found: found.get(user))
        await admin.alter_quotas(
            {user: QuotaChange({}, ["request_percentage"]), client: QuotaChange({}, ["consumer_byte_rate"])}
        )
        await shows(admin.quotas, set(), lambda found: {user, client} & found.keys())
        assert await admin.alter_quotas({}) == {}


async def test_client_without_rights_is_refused_as_a_whole(kafka: KafkaProcess) -> None:
    async with logging_in(kafka, USER, "open sesame") as cluster:
        admin = AdminClient(cluster)
        # without names, Kafka 4.3.1 would answer nothing: a NullPointerException
        for refused in (admin.acls(), admin.scram_credentials([USER]), admin.quotas()):
            with pytest.raises(ApiError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await refused


async def test_token_is_read_again_for_each_connection_and_names_the_principal(
    kafka: KafkaProcess, tmp_path: Path
) -> None:
    topic = unique("allowed")
    async with ClusterClient(kafka.bootstrap) as cluster:
        admin = AdminClient(cluster)
        await admin.create_topics([NewTopic(topic, 1, 1, {})])
        await admin.create_acls([a_rule("alice", topic, AclOperation.DESCRIBE)])
    path = tmp_path / "token"
    path.write_text(unsigned_token("alice", seconds=-10))
    login = Sasl(OAUTHBEARER, None, Credential("sasl.token", "its file", path))
    async with ClusterClient(kafka.addresses["TOKEN"], security=Security(sasl=login)) as cluster:
        with pytest.raises(AuthenticationFailed, match="the broker refused the token: ") as refusal:
            await cluster.metadata([])
        assert path.read_text() not in str(refusal.value)
        path.write_text(f"{unsigned_token('alice')}\n")
        cluster._refused.clear()  # the pause after a refusal
        begun = time.monotonic()
        await shows(lambda: cluster.metadata(None), [topic], lambda found: [one.name for one in found.topics])
        first = await cluster.connection(1)
        assert first.expires - begun < 60, "sessions end after 15 seconds"
        first.expires = 0.0  # as when its session is about to end
        await cluster.metadata([])
        assert await cluster.connection(1) is not first
        await first.closed()
