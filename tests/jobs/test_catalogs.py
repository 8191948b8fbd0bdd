"""Iceberg tables in REST and JDBC catalogs, in a folder and in S3, read without Spark."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from millstream_harness.broker import fixed_port
from millstream_harness.iceberg_rest import rest_catalog
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.postgres import postgres
from millstream_harness.s3 import BUCKET, REGION, S3Server, s3_server
from millstream_harness.signed_in import CLIENT, SCOPE, SECRET, TOKENS, WAREHOUSE, signed_in
from millstream_harness.spark import LoadProcess, publish, spark_jars
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, SCHEMA, Loads, read_iceberg, without_bytes
from millstream_jobs.claims import TableReplaced
from millstream_jobs.failures import root_cause
from millstream_jobs.outputs import OutputError
from millstream_jobs.run import Catalog as CatalogOfRun
from millstream_jobs.run import Fence, Result
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RECORD = b'{"carrier": "UA", "delay": 2, "time_hour": "2013-01-01T10:00:00Z"}'


def offsets(catalog: Catalog) -> list[int]:
    rows: list[int] = catalog.load_table(ICEBERG_TABLE).scan().to_arrow()["_offset"].to_pylist()
    return sorted(rows)


def into(catalog: CatalogOfRun) -> dict[str, Any]:
    return {"format": "Iceberg", "table": ICEBERG_TABLE, "catalog": catalog}


def test_runs_are_published_once_in_a_rest_catalog(loads: Loads, tmp_path: Path) -> None:
    loads.publish([(None, RECORD)] * 5)
    with rest_catalog(tmp_path / "server", str(loads.path)) as uri:
        output = into(CatalogOfRun("REST", uri))
        for name, begin, end in (("run-0001", 0, 3), ("run-0001", 0, 3), ("run-0002", 3, 5)):
            result = loads.load((0, begin, end), name=name, output=output, partition_by=("date",))
            assert without_bytes(result) == Result("Succeeded", rows=end - begin)
        assert offsets(load_catalog("rest", type="rest", uri=uri)) == [0, 1, 2, 3, 4]


def test_a_rest_catalog_gives_a_token_for_its_warehouse(
    loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.publish([(None, RECORD)] * 3)
    with rest_catalog(tmp_path / "server", str(loads.path)) as behind, signed_in(behind) as uri:
        monkeypatch.setenv("CATALOG_CREDENTIAL", f"{CLIENT}:wrong")
        output = into(CatalogOfRun("REST", uri, WAREHOUSE, uri + TOKENS, SCOPE))
        with pytest.raises(OutputError) as refused:
            loads.load((0, 0, 3), output=output)
        assert f"output.catalog: the REST catalog {uri} cannot be used: " in str(refused.value)
        assert "wrong client, secret or scope" in str(refused.value)

        monkeypatch.setenv("CATALOG_CREDENTIAL", f"{CLIENT}:{SECRET}")
        assert loads.load((0, 0, 3), output=output).rows == 3
        assert offsets(load_catalog("rest", type="rest", uri=behind)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "url"), [("REST", "http://{}"), ("JDBC", "jdbc:postgresql://{}/lake?password=secret")]
)
def test_a_catalog_that_is_not_there_is_told(loads: Loads, kind: Any, url: str) -> None:
    loads.publish([(None, RECORD)])
    uri = url.format(f"127.0.0.1:{fixed_port()}")
    with pytest.raises(OutputError) as refused:
        loads.load((0, 0, 1), output=into(CatalogOfRun(kind, uri)))
    said = str(refused.value)
    assert said.startswith(f"output.catalog: the {kind} catalog {uri.partition('?')[0]} cannot be used: ")
    assert "Connection refused" in said
    assert said.endswith("check uri, that the catalog runs, and the Secret that credentialsSecret names")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as started:
        yield started


def load_twice_into_s3(server: S3Server, bootstrap: str, folder: Path, catalog: dict[str, str]) -> None:
    """Load the same run in two processes, one after the other, with S3's credentials in their environment."""
    spark_jars()
    topic = f"catalog-{uuid.uuid4().hex[:8]}"
    publish(bootstrap, topic, [[(None, RECORD)] * 5])
    run = {
        "name": "run-0001",
        "bootstrap": bootstrap,
        "offsets": [{"topic": topic, "partition": 0, "from": 0, "until": 5}],
        "value": {"format": "JSON", "schema": SCHEMA},
        "fence": {},
        "output": {
            "format": "Iceberg",
            "path": f"s3a://{BUCKET}/{catalog['type']}/{topic}",
            "table": ICEBERG_TABLE,
            "partitionBy": ["date"],
            "catalog": catalog,
            "s3": {"endpoint": server.endpoint, "pathStyle": True, "region": REGION},
        },
    }
    for _ in range(2):
        loaded = LoadProcess(folder, run).wait()
        assert loaded.status == 0, loaded.stderr
        assert loaded.result["rows"] == 5


def test_a_rest_catalog_says_where_its_tables_are_in_s3(
    s3: S3Server, shared_broker: InProcessBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with rest_catalog(tmp_path / "server", f"s3://{BUCKET}/REST", s3) as uri:
        load_twice_into_s3(s3, shared_broker.bootstrap, tmp_path, {"type": "REST", "uri": uri})
        catalog = load_catalog("rest", type="rest", uri=uri, **s3.iceberg_options)
        assert catalog.load_table(ICEBERG_TABLE).location().startswith(f"s3://{BUCKET}/REST/")
        assert offsets(catalog) == [0, 1, 2, 3, 4]


def test_a_run_is_published_once_in_sqlite(
    s3: S3Server, shared_broker: InProcessBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    database = tmp_path / "catalog.sqlite"
    uri = f"jdbc:sqlite:{database}"
    load_twice_into_s3(s3, shared_broker.bootstrap, tmp_path, {"type": "JDBC", "uri": uri})
    with contextlib.closing(sqlite3.connect(database)) as catalog:
        ((metadata,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    table = read_iceberg(metadata, s3.iceberg_options)
    assert sorted(table["_offset"].to_pylist()) == [0, 1, 2, 3, 4]


def test_a_catalog_that_forgot_a_table_or_a_run(loads: Loads, tmp_path: Path) -> None:
    """The files know better: a table that was dropped and created again, and a database from an older copy."""
    loads.publish([(None, RECORD)] * 9)
    database = tmp_path / "catalog.sqlite"

    def load(number: int, after: str | None) -> int:
        given = {"name": f"run-000{number}", "fence": Fence(after), "value": Value(schema=SCHEMA)}
        output = into(CatalogOfRun("JDBC", f"jdbc:sqlite:{database}"))
        return loads.load((0, number, number + 1), output=output, **given).rows

    def ask(sql: str, *given: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as catalog:
            return catalog.execute(sql, given).fetchall()

    load(1, None)
    ((older,),) = ask("SELECT metadata_location FROM iceberg_tables")
    load(2, "run-0001")
    ((newer,),) = ask("SELECT metadata_location FROM iceberg_tables")
    ask("UPDATE iceberg_tables SET metadata_location = ?", older)
    with pytest.raises(TableReplaced, match="is not the table that run run-0002 wrote to: it was restored"):
        load(3, "run-0002")
    ask("UPDATE iceberg_tables SET metadata_location = ?", newer)
    assert load(3, "run-0002") == 1
    ask("DELETE FROM iceberg_tables")
    with pytest.raises(TableReplaced, match="is not the table that run run-0003 wrote to"):
        load(4, "run-0003")
    assert load(5, None) == 1


def test_a_second_driver_on_sqlite_is_told_why_it_cannot_write(loads: Loads, tmp_path: Path) -> None:
    """As beside a driver: Iceberg does not end the read in which it looks for its tables."""
    loads.publish([(None, RECORD)] * 2)
    database = tmp_path / "catalog.sqlite"
    output = into(CatalogOfRun("JDBC", f"jdbc:sqlite:{database}"))
    assert loads.load((0, 0, 1), name="run-0001", output=output).rows == 1
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT name FROM sqlite_master").fetchall()
        with pytest.raises(Exception, match="SQLITE_BUSY") as refused:
            loads.load((0, 1, 2), name="run-0002", output=output)
        assert root_cause(refused.value).endswith(
            ": SQLite serves one driver at a time: use PostgreSQL, or a REST catalog"
        )
    assert loads.load((0, 1, 2), name="run-0002", output=output).rows == 1


def test_a_run_is_published_once_in_postgresql(
    s3: S3Server, shared_broker: InProcessBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres() as database:
        for name, value in (s3.environment | database.environment).items():
            monkeypatch.setenv(name, value)
        load_twice_into_s3(s3, shared_broker.bootstrap, tmp_path, {"type": "JDBC", "uri": database.uri})
        (metadata,) = database.query("SELECT metadata_location FROM iceberg_tables")
    table = read_iceberg(metadata, s3.iceberg_options)
    assert sorted(table["_offset"].to_pylist()) == [0, 1, 2, 3, 4]


def test_postgresql_refuses_a_wrong_password(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    loads.publish([(None, RECORD)])
    with postgres() as database:
        for name, value in database.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CATALOG_PASSWORD", "wrong")
        with pytest.raises(OutputError) as refused:
            loads.load((0, 0, 1), output=into(CatalogOfRun("JDBC", database.uri)))
        assert database.query("SELECT to_regclass('iceberg_tables')") == [""]
    said = str(refused.value)
    assert said.startswith(f"output.catalog: the JDBC catalog {database.uri} cannot be used: ")
    assert 'password authentication failed for user "lake"' in said
    assert said.endswith("check uri, that the catalog runs, and the Secret that credentialsSecret names")
