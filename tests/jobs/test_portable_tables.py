"""New tables have formats that other readers know, whatever a session's defaults; a load reports one that has not."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError

from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads, read_table
from millstream_jobs.outputs.session import catalog_name

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
DEFAULTS = "spark.databricks.delta.properties.defaults"
RECORD = b'{"carrier": "UA", "delay": 2, "time_hour": "2013-01-01T10:00:00Z"}'


@pytest.mark.parametrize("newer_defaults", [False, True])
def test_new_delta_table_has_the_first_protocol(loads: Loads, newer_defaults: bool) -> None:
    if newer_defaults:
        loads.spark.conf.set(f"{DEFAULTS}.enableDeletionVectors", "true")
        loads.spark.conf.set(f"{DEFAULTS}.checkpointPolicy", "v2")
    loads.publish([(None, RECORD)] * 4)
    for number in range(2):
        given: dict[str, Any] = {"name": f"run-{number}", "output": {"format": "Delta", "owner": "ns/a"}}
        assert loads.load((0, 2 * number, 2 * number + 2), **given).warning == ""
    replaced = {"format": "Delta", "owner": "ns/a", "mode": "Replace"}
    assert loads.load((0, 1, 3), name="again", output=replaced).rows == 2

    table = DeltaTable(loads.path)
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
    assert not protocol.writer_features
    assert [row["_offset"] for row in loads.rows("Delta")] == [0, 1, 2, 3]  # PyArrow reads its files
    query = QueryBuilder().register("loaded", table).execute("SELECT _offset FROM loaded ORDER BY _offset")
    assert pyarrow.table(query.read_all())["_offset"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("newer_defaults", [False, True])
def test_new_iceberg_table_has_format_version_2(loads: Loads, newer_defaults: bool) -> None:
    output = {"format": "Iceberg", "table": ICEBERG_TABLE}
    if newer_defaults:
        default = f"spark.sql.catalog.{catalog_name(loads.run(output=output).output)}.table-default"
        loads.spark.conf.set(f"{default}.format-version", "3")
        loads.spark.conf.set(f"{default}.write.delete.mode", "merge-on-read")
    loads.publish([(None, RECORD)] * 4)
    assert loads.load((0, 0, 4), output=output).rows == 4
    assert loads.load((0, 1, 3), name="again", output={**output, "mode": "Replace"}).rows == 2

    assert [row["_offset"] for row in loads.rows("Iceberg")] == [0, 1, 2, 3]
    for file in loads.path.joinpath(*ICEBERG_TABLE.split("."), "metadata").glob("v*.metadata.json"):
        metadata = json.loads(file.read_bytes())
        assert metadata["format-version"] == 2
        for snapshot in metadata["snapshots"]:
            assert snapshot["summary"]["total-delete-files"] == "0"


def test_load_warns_of_deletion_vectors(loads: Loads, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody else sets the property: from then on PyArrow's reader refuses the table. The advice mends it."""
    loads.publish([(None, RECORD)] * 6)

    def load(first: int) -> str:
        return loads.load((0, first, first + 2), name=f"run-{first}", output={"format": "Delta"}).warning

    assert load(0) == ""
    loads.spark.sql(
        f"ALTER TABLE delta.`{loads.path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        read_table("Delta", loads.path)
    warning = load(2)
    assert f"{loads.path} has the table feature deletionVectors: " in warning
    assert f"load: warning: {warning}\n" in capsys.readouterr().out
    remedies = re.findall(r"ALTER TABLE .*?(?=, then |$)", warning)
    assert len(remedies) == 2
    for remedy in remedies:
        loads.spark.sql(remedy)
    assert load(4) == ""
    assert [row["_offset"] for row in loads.rows("Delta")] == list(range(6))
