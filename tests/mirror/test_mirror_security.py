"""Mirrors from and to Apache Kafka with TLS and SASL; each failure has its reason, and recovery is automatic."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kafka import KafkaProcess
from millstream_harness.local import Sandbox
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce, read_batches
from millstream_harness.mirror_groups import commit, follows
from millstream_harness.promoting import World
from millstream_harness.scenario import eventually, unique
from millstream_harness.secured_kafka import PASSWORD, USER, Authority, secured_kafka
from millstream_kafka.client import (
    AuthenticationFailed,
    ClusterClient,
    ConnectionLost,
    Credential,
    Sasl,
    Security,
)
from millstream_kafka.client import sasl as sasl_login
from millstream_kafka.protocol import api_versions

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[KafkaProcess]:
    config = {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "3"}
    with secured_kafka(tmp_path_factory.mktemp("kafka"), authority, config) as broker:
        yield broker


def secret(path: Path, text: str = "") -> dict[str, str]:
    if text:
        path.write_text(text)
    return {"file": str(path), "from": f"key {path.name} of Secret test"}


def sasl(folder: Path, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "username": {"value": USER},
        "password": secret(folder / "password", f"{password}\n"),
    }


def trusting(authority: Authority) -> dict[str, Any]:
    return {"caCertificates": [secret(authority.certificate)]}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_source_with_tls_and_login_is_mirrored(
    kafka: KafkaProcess,
    authority: Authority,
    east: InProcessBroker,
    start_mirror: StartMirror,
    tmp_path: Path,
    mechanism: str,
) -> None:
    topic = unique("from-secured")
    create(kafka, topic, 2)
    produce(kafka, topic, range(1000), 2)
    source = {"tls": trusting(authority), "sasl": sasl(tmp_path, mechanism)}
    mirror = start_mirror(
        {"kafka": kafka.addresses["SECURE"]},
        east.bootstrap,
        security={"kafka": source},
        topics={"include": [topic]},
        name=topic,
    )
    arrived(east, topic, [500, 500])
    assert PASSWORD not in mirror.output.read_text()
    assert mirror.status()["sources"][0]["lastError"] == ""


def test_kafka_target_with_tls_and_login_gets_positions(
    kafka: KafkaProcess,
    authority: Authority,
    west: InProcessBroker,
    start_mirror: StartMirror,
    tmp_path: Path,
) -> None:
    topic, group = unique("to-secured"), unique("app")
    create(west, topic)
    produce(west, topic, range(3000), batch_num_messages=10)
    mirror = start_mirror(
        {"west": west.bootstrap},
        kafka.addresses["SECURE"],
        security={"target": {"tls": trusting(authority), "sasl": sasl(tmp_path)}},
        topics={"include": [topic]},
        groups={"include": [group]},
        name=topic,
    )
    arrived(kafka, topic, [3000])
    commit(west, group, topic, 123)
    follows(kafka, group, topic, 123)
    mirror.kill()
    mirror.start()
    produce(west, topic, range(3000, 4000))
    arrived(kafka, topic, [4000])


async def test_kafka_source_with_tls_and_login_has_replica(
    kafka: KafkaProcess,
    authority: Authority,
    east: InProcessBroker,
    start_mirror: StartMirror,
    tmp_path: Path,
) -> None:
    """With mode Identity: the log, its start and positions of groups; then its promotion, for which the operator has no
    credentials of the source.
    """
    topic, group = unique("replica"), unique("app")
    create(kafka, topic, 2)
    for codec in ("none", "zstd"):
        produce(kafka, topic, range(1000), 2, compression_type=codec, enable_idempotence=True)
    admin(kafka).delete_records([TopicPartition(topic, 1, 100)])[TopicPartition(topic, 1)].result(20)
    mirror = start_mirror(
        {"kafka": kafka.addresses["SECURE"]},
        east.bootstrap,
        security={"kafka": {"tls": trusting(authority), "sasl": sasl(tmp_path)}},
        mode="Identity",
        topics={"include": [topic]},
        groups={"include": [group]},
        name=topic,
    )
    arrived(east, topic, [1000, 1000])
    mirror.kill()
    produce(kafka, topic, range(1000, 2000), 2)
    mirror.start()
    arrived(east, topic, [1500, 1500])
    for partition in (0, 1):
        theirs = await read_batches(kafka.bootstrap, topic, partition)
        assert await read_batches(east.bootstrap, topic, partition) == theirs != []
    start = admin(east).list_offsets({TopicPartition(topic, 1): OffsetSpec.earliest()})
    assert start[TopicPartition(topic, 1)].result(20).offset == 100
    commit(kafka, group, topic, 123)
    follows(east, group, topic, 123)
    status = eventually(mirror.status, lambda now: now["lag"]["records"] == 0, "lag")
    assert (status["sources"][0]["lastError"], status["sources"][0]["problems"]) == ("", [])
    assert PASSWORD not in mirror.output.read_text()

    def reference(key: str) -> dict[str, Any]:
        return {"secretKeyRef": {"name": "kafka", "key": key}}

    source = {
        "name": "kafka",
        "bootstrap": kafka.addresses["SECURE"],
        "tls": {"caCertificates": [reference("ca.crt")]},
        "sasl": {
            "mechanism": "SCRAM-SHA-512",
            "username": {"value": USER},
            "password": reference("password"),
        },
    }
    world = World(east.bootstrap, topic, sources=[source])
    try:
        world.ask("r")
        last = eventually(
            lambda: world.look().get("lastPromotion", {}),
            lambda now: now.get("state") == "Done",
            "its promotion",
        )
    finally:
        world.close()
    (row,) = last["topics"]
    assert (row["ends"], row["sourceEnds"], row["sourceEndsFrom"]) == ([1500] * 2, [1500] * 2, "LastKnown")
    produce(east, topic, range(2000, 2010), 2)
    arrived(east, topic, [1505, 1505])


def test_client_certificate_is_accepted(
    kafka: KafkaProcess, authority: Authority, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("client-certificate")
    create(kafka, topic)
    produce(kafka, topic, range(100))
    authority.issue("client")
    tls = {
        **trusting(authority),
        "certificate": secret(authority.folder / "client.crt"),
        "key": secret(authority.folder / "client.key"),
    }
    start_mirror(
        {"kafka": kafka.addresses["MUTUAL"]},
        east.bootstrap,
        security={"kafka": {"tls": tls}},
        topics={"include": [topic]},
        name=topic,
    )
    arrived(east, topic, [100])


SCRAM_REFUSED = "the broker refused user name or password"
REFUSED: dict[str, tuple[str, Callable[[Authority, Path], dict[str, Any]], str, str]] = {
    "a wrong password": (
        "SECURE",
        lambda ca, folder: {"tls": trusting(ca), "sasl": sasl(folder, password="wrong")},
        "AuthenticationFailed",
        SCRAM_REFUSED,
    ),
    "a wrong password, PLAIN": (
        "SECURE",
        lambda ca, folder: {"tls": trusting(ca), "sasl": sasl(folder, "PLAIN", "wrong")},
        "AuthenticationFailed",
        SCRAM_REFUSED,
    ),
    "a mechanism that is not served": (
        "CLEAR",
        lambda ca, folder: {"sasl": sasl(folder, "PLAIN")},
        "AuthenticationFailed",
        "does not serve this mechanism: it serves SCRAM-SHA-512",
    ),
    "another authority": (
        "SECURE",
        lambda ca, folder: {"tls": trusting(Authority(folder / "other")), "sasl": sasl(folder)},
        "TlsFailed",
        "its certificate is refused: unable to get local issuer certificate",
    ),
    "an expired certificate": (
        "EXPIRED",
        lambda ca, folder: {"tls": trusting(ca)},
        "TlsFailed",
        "its certificate is refused: certificate has expired",
    ),
    "another host": (
        "ELSEWHERE",
        lambda ca, folder: {"tls": trusting(ca)},
        "TlsFailed",
        "certificate is not valid for '127.0.0.1'",
    ),
    "no client certificate": (
        "MUTUAL",
        lambda ca, folder: {"tls": trusting(ca)},
        "TlsFailed",
        "it refuses our certificate",
    ),
    "a missing Secret": (
        "SECURE",
        lambda ca, folder: {
            "tls": trusting(ca),
            "sasl": {**sasl(folder), "password": secret(folder / "missing")},
        },
        "CredentialsMissing",
        "sources[0].sasl.password: key missing of Secret test does not exist: create it",
    ),
    "a certificate that is none": (
        "SECURE",
        lambda ca, folder: {"tls": {"caCertificates": [secret(folder / "ca.crt", "nothing")]}},
        "CredentialsMissing",
        "sources[0].tls.caCertificates[0]: key ca.crt of Secret test is not a certificate in PEM format",
    ),
    "a key of another certificate": (
        "MUTUAL",
        lambda ca, folder: {
            "tls": {
                **trusting(ca),
                "certificate": secret(ca.issue("one").with_suffix(".crt")),
                "key": secret(ca.issue("two").with_suffix(".key")),
            }
        },
        "CredentialsMissing",
        "and the private key cannot be used together",
    ),
    "no TLS where it is required": (
        "SECURE",
        lambda ca, folder: {"sasl": sasl(folder)},
        "Unreachable",
        "its listener requires TLS",
    ),
    "no login where it is required": (
        "SECURE",
        lambda ca, folder: {"tls": trusting(ca)},
        "Unreachable",
        "its listener may require TLS or SASL",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_login_or_certificate_is_reported(
    kafka: KafkaProcess,
    authority: Authority,
    east: InProcessBroker,
    start_mirror: StartMirror,
    tmp_path: Path,
    case: str,
) -> None:
    listener, security, reason, words = REFUSED[case]
    mirror = start_mirror(
        {"kafka": kafka.addresses[listener]},
        east.bootstrap,
        security={"kafka": security(authority, tmp_path)},
        name=unique("refused"),
    )
    source = eventually(
        lambda: mirror.status()["sources"][0], lambda found: found["lastError"] != "", "an error"
    )
    assert (source["reachable"], source["reason"]) == (False, reason)
    assert words in source["lastError"]
    assert PASSWORD not in source["lastError"]


def test_unverified_host_is_accepted_if_configured(
    kafka: KafkaProcess, authority: Authority, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    mirror = start_mirror(
        {"kafka": kafka.addresses["ELSEWHERE"]},
        east.bootstrap,
        security={"kafka": {"tls": {**trusting(authority), "verifyHostname": False}}},
        name=unique("any-host"),
    )
    eventually(lambda: mirror.status()["sources"][0]["reachable"], lambda found: found, "the source")


def test_corrected_password_reconnects_target(
    kafka: KafkaProcess,
    authority: Authority,
    west: InProcessBroker,
    start_mirror: StartMirror,
    tmp_path: Path,
) -> None:
    topic = unique("corrected")
    create(west, topic)
    produce(west, topic, range(100))
    mirror = start_mirror(
        {"west": west.bootstrap},
        kafka.addresses["SECURE"],
        security={"target": {"tls": trusting(authority), "sasl": sasl(tmp_path, password="wrong")}},
        topics={"include": [topic]},
        name=topic,
    )
    target = eventually(lambda: mirror.status()["target"], lambda found: found["lastError"], "an error")
    assert (target["reachable"], target["reason"]) == (False, "AuthenticationFailed")
    assert SCRAM_REFUSED in target["lastError"]
    sasl(tmp_path)  # the same worker reads it again
    arrived(kafka, topic, [100])
    assert mirror.status()["target"] == {"reachable": True, "reason": "", "lastError": ""}


async def test_expiring_session_is_renewed(kafka: KafkaProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    login = Sasl("SCRAM-SHA-512", Credential("", "", value=USER), Credential("", "", value=PASSWORD))
    async with ClusterClient(kafka.addresses["SHORT"], security=Security(sasl=login)) as cluster:
        with pytest.raises(AuthenticationFailed, match="the broker ends sessions after 9000 ms"):
            await cluster.metadata([])
    monkeypatch.setattr(sasl_login, "MIN_SESSION_MS", 1000)
    async with ClusterClient(kafka.addresses["SHORT"], security=Security(sasl=login)) as cluster:
        await cluster.metadata([])
        first = await cluster.connection(1)
        assert first.expires < time.monotonic() + 9
        while await cluster.connection(1) is first:
            assert not first.is_closed, "it was replaced before the broker closed it"
            await cluster.metadata([])
        await first.closed()
        with pytest.raises(ConnectionLost):
            await first.call(api_versions.API, None, api_versions.ApiVersionsRequest())
        await cluster.metadata([])


def test_local_runtime_reads_secrets_from_manifests(
    kafka: KafkaProcess, authority: Authority, tmp_path: Path
) -> None:
    topic = unique("local")
    create(kafka, topic)
    produce(kafka, topic, range(100))
    sandbox = Sandbox(tmp_path)
    sandbox.cluster("east")

    def login(password: str) -> None:
        values = {"ca.crt": authority.certificate.read_text(), "password": password}
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kafka"}, "stringData": values}
        (sandbox.manifests / "secret.yaml").write_text(json.dumps(manifest))

    def key(name: str) -> dict[str, Any]:
        return {"secretKeyRef": {"name": "kafka", "key": name}}

    source = {
        "name": "kafka",
        "bootstrap": kafka.addresses["SECURE"],
        "tls": {"caCertificates": [key("ca.crt")]},
        "sasl": {"mechanism": "SCRAM-SHA-256", "username": {"value": USER}, "password": key("password")},
    }
    spec = {
        "sources": [source],
        "target": {"clusterRef": {"name": "east"}},
        "topics": {"include": [topic]},
    }
    sandbox.write("MirrorMaker", "kafka-to-east", json.dumps(spec))
    login("wrong")
    try:
        sandbox.runtime().up(sandbox.manifests)
        ready = eventually(
            lambda: sandbox.ready("MirrorMaker", "kafka-to-east"),
            lambda found: found[1] == "AuthenticationFailed",
            "a refusal",
        )
        assert SCRAM_REFUSED in ready[2]
        worker = sandbox.pid("mirror/default/kafka-to-east/0")
        login(PASSWORD)
        assert sandbox.runtime().up(sandbox.manifests).failures == {}
        arrived(SimpleNamespace(bootstrap=sandbox.bootstrap), topic, [100])  # type: ignore[arg-type]
        assert sandbox.pid("mirror/default/kafka-to-east/0") == worker
        secrets = sandbox.data / "mirrors" / "kafka-to-east" / "secrets"
        assert (secrets / "kafka" / "password").read_text() == PASSWORD
        assert (secrets / "kafka" / "password").stat().st_mode & 0o077 == 0
        assert PASSWORD not in (sandbox.data / "state.json").read_text()
        (sandbox.manifests / "Cluster-east.yaml").unlink()
        assert sandbox.run("delete", "-f", str(sandbox.manifests)).returncode == 0
        assert not secrets.exists()
    finally:
        sandbox.runtime().down()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[KafkaProcess]:
    """A Kafka in which USER has no rights yet; connections without a login have all rights."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": "100",
        "offsets.topic.num.partitions": "3",
    }
    with secured_kafka(tmp_path / "kafka", Authority(tmp_path / "guarding"), config) as broker:
        yield broker


def allow(broker: KafkaProcess, kind: ResourceType, prefix: str, *operations: AclOperation) -> None:
    by_prefix = ResourcePatternType.LITERAL if kind is ResourceType.BROKER else ResourcePatternType.PREFIXED
    rules = [
        AclBinding(kind, prefix, by_prefix, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for done in admin(broker).create_acls(rules).values():
        done.result(20)


def test_documented_rights_suffice(
    guarded: KafkaProcess,
    west: InProcessBroker,
    east: InProcessBroker,
    start_mirror: StartMirror,
    tmp_path: Path,
) -> None:
    topic, group, back = unique("allowed"), unique("app"), unique("back")
    create(guarded, topic, retention_ms="86400000000")
    produce(guarded, topic, range(100))
    create(west, back)
    produce(west, back, range(100))
    login = {"sasl": sasl(tmp_path)}
    source = start_mirror(
        {"kafka": guarded.addresses["CLEAR"]},
        east.bootstrap,
        security={"kafka": login},
        topics={"include": [topic]},
        groups={"include": [group]},
        name=topic,
    )

    def of_source() -> dict[str, Any]:
        found: dict[str, Any] = source.status()["sources"][0]
        return found

    eventually(of_source, lambda found: found["matched"] == 0, "no topic that the user may see")
    allow(guarded, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    eventually(
        of_source,
        lambda found: f"configuration of topic {topic}" in found["lastError"],
        "a missing right, named",
    )
    allow(guarded, ResourceType.TOPIC, topic, AclOperation.DESCRIBE_CONFIGS)
    eventually(of_source, lambda found: "TOPIC_AUTHORIZATION_FAILED" in found["lastError"], "and the other")
    allow(guarded, ResourceType.TOPIC, topic, AclOperation.READ)
    arrived(east, topic, [100])
    allow(guarded, ResourceType.GROUP, group, AclOperation.DESCRIBE)
    commit(guarded, group, topic, 42)
    follows(east, group, topic, 42)

    allow(
        guarded,
        ResourceType.TOPIC,
        back,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.WRITE,
        AclOperation.READ,
        AclOperation.ALTER,
    )
    allow(guarded, ResourceType.GROUP, "millstream-mirror.", AclOperation.READ)
    start_mirror(
        {"west": west.bootstrap},
        guarded.addresses["CLEAR"],
        security={"target": login},
        topics={"include": [back]},
        groups={"include": [group]},
        name=back,
    )
    arrived(guarded, back, [100])
    allow(guarded, ResourceType.GROUP, group, AclOperation.READ)
    commit(west, group, back, 17)
    follows(guarded, group, back, 17)


def test_command_shows_mirrors_of_secured_clusters(
    kafka: KafkaProcess,
    authority: Authority,
    east: InProcessBroker,
    start_mirror: StartMirror,
    tmp_path: Path,
) -> None:
    """In both directions; with the settings in files, because passwords belong in no command line."""
    topic, back = unique("shown"), unique("back")
    create(kafka, topic)
    create(east, back)
    produce(kafka, topic, range(100))
    produce(east, back, range(50))
    address = kafka.addresses["SECURE"]
    login = {"tls": trusting(authority), "sasl": sasl(tmp_path)}
    start_mirror(
        {"kafka": address}, east.bootstrap, security={"kafka": login}, topics={"include": [topic]}, name=topic
    )
    start_mirror(
        {"east": east.bootstrap}, address, security={"target": login}, topics={"include": [back]}, name=back
    )
    arrived(east, topic, [100])
    arrived(kafka, back, [50])
    settings = tmp_path / "client.properties"
    settings.write_text(
        f"# of a person\n\nsecurity.protocol = SASL_SSL\nssl.ca.location={authority.certificate}\n"
        f"sasl.mechanism=SCRAM-SHA-512\nsasl.username={USER}\nsasl.password={PASSWORD}\n"
    )

    def lag(target: str, name: str, source: str, *more: str) -> int | None:
        done = mirror_status("-b", target, "mirror", "status", name, "--source", source, *more, "-o", "json")
        assert done.returncode == 0, done.stderr
        (one,) = json.loads(done.stdout)
        found: int | None = one["lag"]
        return found

    of_source = ("--source-config", f"kafka={settings}")
    eventually(
        lambda: lag(east.bootstrap, topic, f"kafka={address}", *of_source), lambda now: now == 0, "lag"
    )
    of_target = ("--config", str(settings))
    eventually(lambda: lag(address, back, f"east={east.bootstrap}", *of_target), lambda now: now == 0, "lag")
    without = mirror_status("-b", address, "mirror", "status")
    assert without.returncode == 1
    assert len(without.stderr.splitlines()) == 1


def mirror_status(*args: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "millstream"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
