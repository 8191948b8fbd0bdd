"""Jobs over TLS as the user of a BatchLoad: with the files and options that the operator makes for its pods."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from millstream_harness.certificates import Authority
from millstream_harness.guarded_broker import Guarded, guarded_broker
from millstream_harness.in_memory import in_memory, stored
from millstream_harness.known_users import KnownUsers
from millstream_harness.load_looks import a_load, look
from millstream_harness.manifests import cluster
from millstream_harness.scenario import eventually
from millstream_harness.spark import publish
from millstream_harness.spark_loads import PY4J, Loads, read_table
from millstream_jobs import audit, positions, stream
from millstream_jobs import load as job
from millstream_jobs import publish as publishing
from millstream_jobs.audits.file import Audit
from millstream_jobs.publish_file import Publish, Source
from millstream_jobs.rewind import Rewind, rewind
from millstream_jobs.run import Output, Run, read_run
from millstream_jobs.stream import Stream
from millstream_jobs.value import Value
from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.admin.access import Acl
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.client import ClusterClient
from millstream_operator.resources.pod_access import FOLDER

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
    pytest.mark.filterwarnings(PY4J),
]
VALUE = Value("JSON", schema="number INT")
BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


class Cluster:
    """A broker whose listener for users has TLS, and the authorities of which its certificates are."""

    def __init__(self, folder: Path, guarded: Guarded, authority: Authority) -> None:
        self.folder, self.guarded = folder, guarded
        self.trusted = [authority]

    def denied(self) -> list[str]:
        """The requests that a user had no right to."""
        lines = map(json.loads, (self.folder / "audit.log").read_text().splitlines())
        return [f"{one['api']} {one['resource']}" for one in lines if one["event"] == "denied"]

    def reissue(self, authority: Authority) -> None:
        """Wait until the broker serves a certificate of another authority."""
        write_keystore(self.folder, authority)
        self.trusted.append(authority)
        host, port = self.guarded.login.split(":")

        def is_served() -> bool:
            try:
                with socket.create_connection((host, int(port)), 10) as plain:
                    authority.client_context().wrap_socket(plain, server_hostname=host).close()
            except ssl.SSLError:
                return False
            return True

        eventually(is_served, bool, "a certificate of the next authority")


def write_keystore(folder: Path, authority: Authority) -> Path:
    """Replace the file in one step, as kubelet does."""
    authority.issue().write(folder / "next.pem")
    return (folder / "next.pem").replace(folder / "broker.pem")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Cluster]:
    authority, folder = Authority(), tmp_path / "brokers"
    folder.mkdir()
    config = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(write_keystore(folder, authority)),
        "audit.log": str(folder / "audit.log"),
    }
    with guarded_broker(folder / "data", config) as found:
        yield Cluster(folder, found, authority)


@pytest.fixture
def loads(spark: SparkSession, secured: Cluster, tmp_path: Path) -> Loads:
    return Loads(spark, secured.guarded.bootstrap, tmp_path)


class Pods:
    """What the operator makes for the pods of a BatchLoad of a topic, with its Secrets mounted in a folder."""

    def __init__(self, secured: Cluster, loads: Loads, until: int) -> None:
        self.secured, self.loads, self.users = secured, loads, KnownUsers()
        self.mounted = loads.path.parent / "user"
        platform = {
            "bootstrap": secured.guarded.login,
            "secret": "s",
            "caSecret": "default-cluster-ca-cert",
            "internal": "Closed",
        }
        offsets = [{"topic": loads.topic, "partition": 0, "from": 0, "until": until}]
        status = {"lastRun": {"name": "daily-0001-x", "state": "Pending"}, "offsets": offsets}
        load = a_load(status, topics=[loads.topic], value={"format": "JSON", "schema": "number INT"})
        where = stored(cluster("default"), {"platform": platform})
        self.memory = in_memory(where, load, identities={}, **self.users.answers)
        self.follow()
        asyncio.run(self._store())

    def follow(self) -> None:
        """Look at the load, and update the mounted files as kubelet does."""
        name = {"namespace": "ns", "name": "default-cluster-ca-cert"}
        authorities = "".join(one.pem for one in self.secured.trusted).encode()
        data = {"ca.crt": base64.b64encode(authorities).decode()}
        self.memory.kube.put({"kind": "Secret", "metadata": name, "data": data})
        look(self.memory)
        shutil.rmtree(self.mounted, ignore_errors=True)
        self.mounted.mkdir()
        objects = self.memory.kube.objects
        pod = objects["Job", "daily-0001-x"]["spec"]["template"]["spec"]
        (volume,) = (one for one in pod["volumes"] if "projected" in one)
        for source in volume["projected"]["sources"]:
            for key, value in objects["Secret", source["secret"]["name"]]["data"].items():
                (self.mounted / key).write_bytes(base64.b64decode(value))

    async def _store(self, *more: Acl) -> None:
        """Give the broker what the operator gave it."""
        async with ClusterClient(self.secured.guarded.bootstrap) as client:
            admin = AdminClient(client)
            await admin.alter_scram_credentials(list(self.users.credentials.values()))
            await admin.create_acls([*self.users.rules, *more])

    def allow(self, operation: AclOperation, topic: str) -> None:
        (user,) = self.users.credentials
        kind, literal, allow = ResourceType.TOPIC, PatternType.LITERAL, PermissionType.ALLOW
        asyncio.run(self._store(Acl(kind, topic, literal, f"User:{user}", "*", operation, allow)))

    def run(self) -> Run:
        """The run, with this machine's folders in place of the pod's."""
        text = self.memory.kube.objects["ConfigMap", "daily-0001-x"]["data"]["run.json"]
        file: dict[str, Any] = json.loads(text.replace(FOLDER, str(self.mounted)))
        file["output"]["path"], file["result"] = str(self.loads.path), ""
        path = self.loads.path.parent / "run.json"
        path.write_text(json.dumps(file))
        return read_run(path)


def numbers(path: Path) -> list[int]:
    return sorted(read_table("Parquet", path)["number"].to_pylist())


def test_load_reads_over_tls_while_an_authority_is_replaced(loads: Loads, secured: Cluster) -> None:
    loads.publish([(None, b'{"number": 1}'), (None, b'{"number": 2}')])
    pods = Pods(secured, loads, 2)
    run = pods.run()
    assert run.brokers.source()["kafka.security.protocol"] == "SASL_SSL"
    assert job.load(loads.spark, run).rows == 2
    assert numbers(loads.path) == [1, 2]
    assert secured.denied() == []
    old = secured.trusted[0]
    secured.reissue(Authority("Next CA"))
    with pytest.raises(positions.ClusterError, match="certificate"):
        positions.check_partitions(run.brokers, run.offsets)
    pods.follow()
    assert old.pem in (pods.mounted / "ca.crt").read_text(), "both are trusted"
    shutil.rmtree(loads.path)
    assert job.load(loads.spark, run).rows == 2, "the same session, with new clients"


def test_other_jobs_read_and_write_over_tls(loads: Loads, secured: Cluster) -> None:
    loads.publish([(None, b'{"number": 1}'), (None, b'{"number": 2}')])
    reports, folder = f"{loads.topic}-reports", loads.path.parent
    publish(loads.bootstrap, reports, [[]])
    pods = Pods(secured, loads, 2)
    pods.allow(AclOperation.READ, reports)
    run = pods.run()
    access: dict[str, Any] = {name: getattr(run, name) for name in ("bootstrap", "login", "tls")}
    topics = (loads.topic,)
    streamed = Stream(
        "s",
        topics=topics,
        checkpoint=str(folder / "c"),
        output=Output(str(folder / "s")),
        value=VALUE,
        **access,
    )
    assert stream.stream(loads.spark, streamed).rows == 2
    again = Rewind("r", topics=topics, since=BEGIN, output=Output(str(folder / "r")), value=VALUE, **access)
    assert rewind(loads.spark, again).rows == 2
    counted = audit.audit(
        loads.spark, Audit("a", topics=topics, reports=reports, report=str(folder / "a.html"), **access)
    )
    assert counted.rows == 1, "the window of the two records"
    assert secured.denied() == []


def test_publication_writes_over_tls(loads: Loads, secured: Cluster) -> None:
    loads.publish([(None, b'{"number": 1}')])
    pods = Pods(secured, loads, 1)
    run = pods.run()
    job.load(loads.spark, run)
    target = f"{loads.topic}-copy"
    publish(loads.bootstrap, target, [[]])
    for operation in (AclOperation.READ, AclOperation.WRITE):
        pods.allow(operation, target)
    wanted = Publish(
        "p",
        topic=target,
        source=Source(str(loads.path)),
        staging=str(loads.path.parent / "staging"),
        bootstrap=run.bootstrap,
        login=run.login,
        tls=run.tls,
    )
    assert publishing.publish(loads.spark, wanted).rows == 1
    consumer = Consumer({"bootstrap.servers": loads.bootstrap, "group.id": "none"})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(target, 0), 10) == (0, 1)
    finally:
        consumer.close()
    assert secured.denied() == []
