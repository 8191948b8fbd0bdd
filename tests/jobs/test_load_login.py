"""Loads and audits as a user with a password, whose files are mounted: with the rights that they need and no others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from pyspark.sql import Row, SparkSession

from millstream_harness.guarded_broker import Guarded, guarded_broker
from millstream_harness.spark_loads import PY4J, Loads, read_table
from millstream_harness.spark_publications import Topic
from millstream_jobs import load as job
from millstream_jobs import positions, sending, table
from millstream_jobs.brokers import Brokers, Login
from millstream_jobs.run import Run
from millstream_jobs.value import Value
from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.admin.access import Acl, ScramCredential
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.client import ClusterClient
from millstream_kafka.scram_mechanism import ScramMechanism

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
    pytest.mark.filterwarnings(PY4J),
]

USER, PASSWORD = "loader", 'open "sesame" =;'
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as found:
        yield found


@pytest.fixture
def loads(spark: SparkSession, guarded: Guarded, tmp_path: Path) -> Loads:
    return Loads(spark, guarded.bootstrap, tmp_path)


@pytest.fixture
def login(tmp_path: Path) -> Login:
    folder = tmp_path / "user"
    folder.mkdir()
    escaped = PASSWORD.replace('"', '\\"')
    values = {
        "username": USER,
        "password": PASSWORD,
        "sasl.jaas.config": f'{MODULE} required username="{USER}" password="{escaped}";',
    }
    for name, value in values.items():
        (folder / name).write_text(value)
    return Login(str(folder))


def right(
    resource: ResourceType, name: str, operation: AclOperation, pattern: PatternType = PatternType.LITERAL
) -> Acl:
    return Acl(resource, name, pattern, f"User:{USER}", "*", operation, PermissionType.ALLOW)


def give(guarded: Guarded, *rights: Acl) -> None:
    """The user, with these rights."""

    async def set_up() -> None:
        async with ClusterClient(guarded.bootstrap) as client:
            admin = AdminClient(client)
            credential = ScramCredential.of_password(USER, ScramMechanism.SCRAM_SHA_512, PASSWORD)
            await admin.alter_scram_credentials([credential])
            await admin.create_acls(list(rights))

    asyncio.run(set_up())


def as_user(run: Run, guarded: Guarded, login: Login) -> Run:
    return structs.replace(run, bootstrap=guarded.login, login=login)


def test_load_as_a_user_reads_its_topics_and_shows_no_password(
    loads: Loads, guarded: Guarded, login: Login, capfd: pytest.CaptureFixture[str]
) -> None:
    loads.publish([(None, b'{"number": 1}'), (None, b'{"number": 2}')], [(None, b'{"number": 3}')])
    give(guarded, right(ResourceType.TOPIC, loads.topic, AclOperation.READ))
    run = loads.run((0, 0, 2), (1, 0, 1), value=Value("JSON", schema="number INT"))
    result = job.load(loads.spark, as_user(run, guarded, login))
    assert result.rows == 3
    assert sorted(read_table("Parquet", loads.path)["number"].to_pylist()) == [1, 2, 3]
    records = table.read_ranges(loads.spark, Brokers(guarded.login, login), run.offsets)
    plan = records._jdf.queryExecution().toString()
    conf = json.dumps(dict(loads.spark.sparkContext.getConf().getAll()))
    assert not any("sesame" in text for text in (plan, conf, *capfd.readouterr()))


def test_load_of_a_topic_without_the_right_says_so(loads: Loads, guarded: Guarded, login: Login) -> None:
    loads.publish([(None, b'{"number": 1}')], [])
    give(guarded)
    with pytest.raises(positions.ClusterError, match="authorization"):
        positions.check_partitions(Brokers(guarded.login, login), loads.run((0, 0, 1)).offsets)


def test_publication_needs_the_right_to_its_transactional_ids(guarded: Guarded, login: Login) -> None:
    topic = Topic(guarded)
    operations = (AclOperation.READ, AclOperation.WRITE)
    give(guarded, *(right(ResourceType.TOPIC, topic.name, operation) for operation in operations))
    brokers = Brokers(guarded.login, login)
    ids = "millstream-publication-delays-"
    task = sending.Task("delays", brokers, topic.name, {0: 0}, None, "none", f"{ids}5f3a-")

    def sent() -> sending.Sent:
        row = Row(number=0, key=None, value=b"v", headers=[], timestamp=0)
        return sending._outcome(task, 0, iter([row]))

    assert sent().error == (
        "the user may not use its transactional id: allow it Write on transactional ids that begin with "
        + ids
    )
    give(guarded, right(ResourceType.TRANSACTIONAL_ID, ids, AclOperation.WRITE, PatternType.PREFIXED))
    assert sent() == sending.Sent(0, 1)
