"""Specs of a BatchLoad: each wrong one is refused with a clear error, above all those that would give more rights."""

from __future__ import annotations

import pytest

from millstream_harness.loads import allowed_conf, conf_rule
from millstream_harness.specs import LOAD, manifest
from millstream_operator.models import ManifestError
from millstream_operator.validation.admission import decode
from millstream_operator.validation.cel import compile_rule

# Each would give a load's author the driver's rights, or its pods more than the operator allows.
ESCALATING_CONF = (
    "spark.archives",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.host",
    "spark.executor.extraJavaOptions",
    "spark.executorEnv.LD_PRELOAD",
    "spark.extraListeners",
    "spark.files",
    "spark.hadoop.net.topology.script.file.name",
    "spark.jars",
    "spark.jars.packages",
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.driver.secrets.s",
    "spark.kubernetes.executor.container.image",
    "spark.kubernetes.executor.podTemplateFile",
    "spark.kubernetes.executor.secretKeyRef.A",
    "spark.kubernetes.executor.secrets.s",
    "spark.kubernetes.executor.volumes.hostPath.x.mount.path",
    "spark.kubernetes.namespace",
    "spark.plugins",
    "spark.pyspark.driver.python",
    "spark.sql.catalog.x",
    "spark.sql.extensions",
    "spark.sql.hive.metastore.jars",
    "spark.submit.pyFiles",
    "spark.uiX",
)


BAD: list[tuple[object, str]] = [
    *(
        ({**LOAD, "value": value}, f"spec.value{message}")
        for value, message in (
            ({"format": "JSON"}, ": value: schema is required with formats JSON and CSV"),
            ({"format": "CSV"}, ": value: schema is required with formats JSON and CSV"),
            ({"format": "Text", "schema": "a INT"}, ": value: schema is allowed with formats JSON, CSV and"),
            *(
                (
                    {"format": format, **given},
                    ": value: descriptorSet and message are required with format Protobuf",
                )
                for format, given in (("Protobuf", {"message": "a.B"}), ("Text", {"descriptorSet": "CgA="}))
            ),
            ({"format": "Avro"}, ": value: schema or schemaRegistry is required with format Avro"),
            ({"format": "Text", "options": {"delimiter": ";"}}, ": value: options are allowed with formats"),
            (
                {"format": "JSON", "schema": "a INT", "options": {"mode": "x"}},
                ": value.options: allowed with",
            ),
            ({"format": "Text", "schemaRegistry": {"url": "http://r"}}, ": value: schemaRegistry is allowed"),
            (
                {"format": "Avro", "schemaRegistry": {"url": "http://u:p@r"}},
                '.schemaRegistry.url: "http://u:',
            ),
            ({"format": "Text", "maxCorruptRecords": "1000"}, '.maxCorruptRecords: "1000" is not allowed'),
            (
                {"format": "Text", "maxCorruptRecords": -1},
                ".maxCorruptRecords: -1 is too small; allowed: 0 or more",
            ),
            ({"format": "Binary", "maxCorruptRecords": 1}, ": value: maxCorruptRecords is not allowed with"),
        )
    ),
    (
        {**LOAD, "from": {"position": "Timestamp"}},
        "timestamp is required with position Timestamp",
    ),
    ({**LOAD, "output": {"path": "lake"}}, 'spec.output.path: "lake" is not allowed'),
    *(
        ({**LOAD, "output": {"path": "/lake/t", **output}}, message)
        for output, message in (
            ({"path": "hdfs://n/t"}, 'spec.output.path: "hdfs://n/t" is not allowed'),
            ({"format": "CSV"}, "allowed: Parquet, Delta, Iceberg"),
            ({"format": "Iceberg"}, "table is required with format Iceberg"),
            ({"table": "a.b"}, "table is required with format Iceberg, and allowed with it only"),
            ({"format": "Iceberg", "table": "b"}, 'spec.output.table: "b" is not allowed'),
            ({"catalog": {}}, "catalog is allowed with format Iceberg only"),
            (
                {"format": "Iceberg", "table": "a.b", "catalog": {"type": "REST"}},
                "uri is required with type JDBC",
            ),
            (
                {"format": "Iceberg", "table": "a.b", "catalog": {"type": "REST", "uri": "jdbc:x:y"}},
                "http://… or https://… with REST",
            ),
            (
                {
                    "format": "Iceberg",
                    "table": "a.b",
                    "catalog": {"type": "JDBC", "uri": "jdbc:x:y", "scope": "all"},
                },
                "warehouse, oauth2ServerUri and scope are allowed with type REST only",
            ),
            ({"s3": {}}, "s3 is allowed with a path s3a://BUCKET/… only"),
            (
                {"path": "s3a://b/t", "format": "Iceberg", "table": "a.b"},
                "catalog type JDBC or REST is required",
            ),
            ({"targetFileSize": "128MB"}, 'spec.output.targetFileSize: "128MB" is not allowed'),
        )
    ),
    ({**LOAD, "topics": []}, "spec.topics: 0 items are too few"),
    *(
        ({**LOAD, "spark": {"conf": {key: "x"}}}, "spec.spark.conf: conf: a key is not allowed")
        for key in ESCALATING_CONF
    ),
]


@pytest.mark.parametrize(("spec", "message"), BAD, ids=[text[:60] for _, text in BAD])
def test_bad_spec(spec: object, message: str) -> None:
    with pytest.raises(ManifestError) as error:
        decode(manifest("BatchLoad", spec))
    assert str(error.value).startswith("BatchLoad x: spec")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_which_keys_of_sparks_configuration_are_allowed() -> None:
    holds = compile_rule(conf_rule())

    def allows(key: str) -> bool:
        return bool(holds({"self": {key: ""}, "oldSelf": None}))

    for key in allowed_conf():
        assert allows(f"{key}x" if key.endswith(".") else key), key
    for key in (*ESCALATING_CONF, *(f"{key}x" for key in allowed_conf() if not key.endswith("."))):
        assert not allows(key), key
