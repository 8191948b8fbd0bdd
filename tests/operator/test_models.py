"""Manifests become records, and each bad one says field, value and what is allowed."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from millstream_harness.loads import allowed_conf, conf_rule
from millstream_operator.admission import WAIVED, decode, refusal
from millstream_operator.cel import compile_rule
from millstream_operator.models import (
    API_VERSION,
    KINDS,
    BatchLoad,
    Cluster,
    ConsumerGroup,
    ManifestError,
    MirrorMaker,
    MirrorPatterns,
    Resource,
    Topic,
    encode_status,
)
from millstream_operator.models.base import Metadata
from millstream_operator.quantity import QuantityError, parse_quantity, same_quantity
from millstream_operator.schema import validate, with_defaults

ROOT = Path(__file__).resolve().parents[2]
REF = {"clusterRef": {"name": "default"}}
LOAD = {**REF, "topics": ["t"], "value": {"format": "Binary"}, "output": {"path": "/lake/t"}}
MIRROR = {
    "sources": [{"name": "west", "bootstrap": "west:9092"}],
    "target": {"clusterRef": {"name": "east"}},
    "topics": {"include": ["orders.*"]},
}


def manifest(kind: str, spec: object, **more: object) -> dict[str, object]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "x"}, "spec": spec, **more}


def test_defaults() -> None:
    topic = decode(manifest("Topic", REF))
    assert isinstance(topic, Topic)
    assert (topic.topic_name, topic.spec.partitions, topic.spec.replication_factor) == ("x", None, None)
    assert topic.spec.deletion_policy == "Retain"
    cluster = decode(manifest("Cluster", {}))
    assert isinstance(cluster, Cluster)
    assert cluster.spec.brokers.storage.deletion_policy == "Retain"
    assert (cluster.spec.internal.name, cluster.spec.internal.port) == ("internal", 9092)
    load = decode(manifest("BatchLoad", LOAD))
    assert isinstance(load, BatchLoad)
    assert (load.spec.from_.position, load.spec.until.position, load.spec.min_records) == (
        "Committed",
        "Latest",
        1,
    )
    mirror = decode(manifest("MirrorMaker", MIRROR))
    assert isinstance(mirror, MirrorMaker)
    assert (mirror.spec.mode, mirror.spec.naming, mirror.spec.replicas) == ("Aggregate", "Same", 1)


def test_a_status_leaves_out_what_is_not_known_and_keeps_zeros() -> None:
    topic = decode(manifest("Topic", REF, status={"partitions": 0, "somethingNew": 1}))
    assert isinstance(topic, Topic)
    assert encode_status(topic.status) == {"partitions": 0}


# Each would give the author of a load the driver's rights, or its pods more than the operator gives them.
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


def template(**spec: object) -> dict[str, object]:
    return {"brokers": {"template": {"spec": spec}}}


def annotated(**metadata: object) -> dict[str, object]:
    return {"brokers": {"template": {"metadata": metadata}}}


def broker_env(**variable: object) -> dict[str, object]:
    return template(containers=[{"name": "broker", "env": [variable]}])


BAD: list[tuple[str, object, str]] = [
    *(
        ("Cluster", template(**{field: value}), f"spec.brokers.template.spec.{field}: unknown field")
        for field, value in {
            "hostPID": True,
            "hostNetwork": True,
            "hostIPC": True,
            "securityContext": {"runAsUser": 0},
            "serviceAccountName": "admin",
            "automountServiceAccountToken": True,
            "initContainers": [{"name": "broker"}],
            "ephemeralContainers": [],
            "nodeName": "control-plane",
            "runtimeClassName": "none",
            "shareProcessNamespace": True,
        }.items()
    ),
    *(
        (
            "Cluster",
            template(containers=[{"name": "broker", field: value}]),
            f"spec.brokers.template.spec.containers[0].{field}: unknown field",
        )
        for field, value in {
            "securityContext": {"privileged": True},
            "image": "mine",
            "command": ["sh"],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "lifecycle": {},
            "ports": [{"containerPort": 1, "hostPort": 1}],
        }.items()
    ),
    ("Cluster", template(containers=[{"name": "sidecar"}]), "spec.brokers.template.spec.containers[0].name"),
    (
        "Cluster",
        broker_env(name="A", valueFrom={"secretKeyRef": {"name": "s", "key": "k"}}),
        "env[0].valueFrom: unknown field; allowed here: name, value",
    ),
    (
        "Cluster",
        broker_env(name="POD_INDEX", value="1"),
        "env: HOST_IP, NODE_NAME, POD_INDEX and POD_IP are set by the operator",
    ),
    ("Cluster", template(priorityClassName="system-node-critical"), "system-… belong to Kubernetes"),
    (
        "Cluster",
        annotated(labels={"millstream.dev/cluster": "b"}),
        "labels: keys of kubernetes.io, k8s.io and millstream.dev are reserved",
    ),
    ("Cluster", annotated(labels={"app.kubernetes.io/component": "b"}), "labels: keys of kubernetes.io"),
    ("Cluster", annotated(labels={"controller-revision-hash": "b"}), "labels: keys of"),
    ("Cluster", annotated(labels={"team": "a b"}), "spec.brokers.template.metadata.labels"),
    ("Cluster", annotated(annotations={"millstream.dev/config-hash": "b"}), "annotations: keys of"),
    (
        "Cluster",
        annotated(annotations={"container.apparmor.security.beta.kubernetes.io/broker": "unconfined"}),
        "annotations: keys of kubernetes.io, k8s.io and millstream.dev are reserved",
    ),
    (
        "Topic",
        {**REF, "partitons": 1},
        "spec.partitons: unknown field; allowed here: clusterRef, config, deletionPolicy",
    ),
    ("Topic", {}, "spec.clusterRef: is required"),
    ("Topic", {**REF, "partitions": 0}, "spec.partitions: 0 is too small; allowed: 1 or more"),
    (
        "Topic",
        {**REF, "partitions": "six"},
        'spec.partitions: "six" is not an integer',
    ),
    (
        "Topic",
        {**REF, "partitions": True},
        "spec.partitions: true is not an integer",
    ),
    (
        "Topic",
        {**REF, "config": {"a": "1", "b": 2}},
        'spec.config.b: 2 is not a string; write "2" in quotes',
    ),
    ("Topic", {**REF, "deletionPolicy": "Drop"}, "allowed: Retain, Delete"),
    ("Topic", {**REF, "topicName": "a b"}, 'spec.topicName: "a b" is not allowed'),
    ("Topic", {**REF, "topicName": ".."}, 'spec.topicName: ".." is not allowed'),
    (
        "Topic",
        {"clusterRef": {"name": "d", "nam": 1}},
        "spec.clusterRef.nam: unknown field; allowed here: name, namespace",
    ),
    (
        "Topic",
        {"clusterRef": "default"},
        'spec.clusterRef: "default" is not an object',
    ),
    ("Cluster", {"brokers": {"replicas": 0}}, "spec.brokers.replicas: 0 is too small"),
    ("Cluster", {"brokers": {"storage": {"size": "ten"}}}, 'spec.brokers.storage.size: "ten" is not allowed'),
    ("Cluster", {"brokers": {"storage": {"size": 0}}}, "a size greater than 0 is required"),
    (
        "Cluster",
        {"zookeeper": {"replicas": 1, "storage": {"size": "0Gi"}}},
        "a size greater than 0 is required",
    ),
    ("Cluster", {"zookeeper": {}}, "exactly one of replicas and connect is required"),
    ("Cluster", {"zookeeper": {"replicas": 2}}, "allowed: 1, 3"),
    ("Cluster", {"config": {"a\nlog.dirs": "/tmp"}}, "spec.config: config: keys consist of letters"),
    ("Cluster", {"config": {"log.dirs\n": "/tmp"}}, "config: keys consist of letters"),
    ("Cluster", {"config": {"": "/tmp"}}, "config: keys consist of letters"),
    ("Cluster", {"brokers": {"replicas": 3}}, "spec: zookeeper: required with more than one broker"),
    ("Cluster", {"listeners": [{"name": "a", "type": "Foo", "port": 9092}]}, "spec.listeners[0].type"),
    (
        "Cluster",
        {"listeners": [{"name": "a", "type": "NodePort", "port": 9094}]},
        "exactly one of type Internal",
    ),
    ("Cluster", {"listeners": [{"name": "a", "type": "Internal", "port": 9404}]}, "9404 is taken"),
    ("ConsumerGroup", {**REF, "startAt": "Earliest"}, "startAt: the topics it holds for are required"),
    ("ConsumerGroup", {**REF, "maxLag": {"records": -1}}, "spec.maxLag.records: -1 is too small"),
    ("MirrorMaker", {**MIRROR, "sources": []}, "spec.sources: 0 items are too few"),
    (
        "MirrorMaker",
        {**MIRROR, "sources": [{"name": "w"}]},
        "spec.sources[0]: sources: exactly one of clusterRef and bootstrap",
    ),
    ("MirrorMaker", {**MIRROR, "topics": {"include": ["["]}}, "include: '[' is not a regular expression"),
    ("MirrorMaker", {**MIRROR, "topics": {"include": ["(?=a)"]}}, "in RE2's syntax: invalid perl operator"),
    ("MirrorMaker", {**MIRROR, "mode": "Identity"}, "allowed: Aggregate"),
    *(
        ("BatchLoad", {**LOAD, "value": value}, f"spec.value{message}")
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
        "BatchLoad",
        {**LOAD, "from": {"position": "Timestamp"}},
        "timestamp is required with position Timestamp",
    ),
    ("BatchLoad", {**LOAD, "output": {"path": "lake"}}, 'spec.output.path: "lake" is not allowed'),
    *(
        ("BatchLoad", {**LOAD, "output": {"path": "/lake/t", **output}}, message)
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
    ("BatchLoad", {**LOAD, "topics": []}, "spec.topics: 0 items are too few"),
    *(
        ("BatchLoad", {**LOAD, "spark": {"conf": {key: "x"}}}, "spec.spark.conf: conf: a key is not allowed")
        for key in ESCALATING_CONF
    ),
]


@pytest.mark.parametrize(
    ("kind", "spec", "message"), BAD, ids=[f"{kind}-{text[:40]}" for kind, _, text in BAD]
)
def test_bad_spec(kind: str, spec: object, message: str) -> None:
    with pytest.raises(ManifestError) as error:
        decode(manifest(kind, spec))
    assert str(error.value).startswith(f"{kind} x: spec")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "a manifest must be a mapping"),
        ([1], "a manifest must be a mapping"),
        ({"kind": "Topic"}, "apiVersion: nothing is not allowed: expected millstream.dev/v1alpha1"),
        (
            {"apiVersion": API_VERSION, "kind": "Queue"},
            'kind: "Queue" is not allowed: expected one of Cluster, Topic',
        ),
        (
            {"apiVersion": API_VERSION, "kind": "Topic", "spec": REF},
            "Topic ?: Object missing required field `metadata`",
        ),
        ({**manifest("Topic", REF), "speck": 1}, "speck: unknown field"),
    ],
)
def test_bad_document(document: object, message: str) -> None:
    with pytest.raises(ManifestError, match=r".*") as error:
        decode(document)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10Gi", 10 * 2**30),
        ("1k", 1000),
        (3, 3),
        ("250m", 0.25),
        ("1e3", 1000),
        ("1.5", 1.5),
        (".5", 0.5),
        ("2E", 2 * 10**18),
    ],
)
def test_quantities(text: str | int, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1GiB", "ten", "1 2", "1e789012345", "9" * 5000, "." + "1" * 40])
def test_what_is_not_a_quantity(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)
    assert not same_quantity(text, 1)


# The records and the CRDs say the same ---------------------------------------------------------------------------


def _crd_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        yield crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


CRDS = list(_crd_schemas())


def differences(path: str, schema: dict[str, Any], kind: Any, *, defaults: bool) -> Iterator[str]:
    """Where a schema and a record type name other fields, requirements, choices or defaults."""
    kind = bare(kind)
    if path.endswith(".template"):
        return  # written from the record
    if schema.get("type") == "array":
        yield from differences(f"{path}[]", schema["items"], typing.get_args(kind)[0], defaults=defaults)
        return
    if typing.get_origin(kind) is typing.Literal and sorted(map(str, typing.get_args(kind))) != sorted(
        map(str, schema.get("enum", ()))
    ):
        yield f"{path}: choices {typing.get_args(kind)} and {schema.get('enum')}"
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    if set(fields) != set(schema["properties"]):
        yield f"{path}: fields {sorted(set(fields) ^ set(schema['properties']))} only on one side"
        return
    required = set(schema.get("required", ()))
    for name, field in fields.items():
        inner = schema["properties"][name]
        if (name in required) != field.required:
            yield f"{path}.{name}: required only on one side"
        value = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            value = msgspec.to_builtins(field.default_factory())
        if (
            defaults
            and not isinstance(value, dict)
            and value not in (None, ())
            and inner.get("default") != value
        ):
            yield f"{path}.{name}: defaults {inner.get('default')} and {value}"
        if defaults and "default" in inner and inner["default"] not in ({}, []) and value in (None, ()):
            yield f"{path}.{name}: default {inner['default']} only in the CRD"
        yield from differences(f"{path}.{name}", inner, field.type, defaults=defaults)


def bare(kind: Any) -> Any:
    if typing.get_origin(kind) is typing.Annotated:
        return bare(typing.get_args(kind)[0])
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    return bare(options[0]) if type(None) in typing.get_args(kind) and len(options) == 1 else kind


@pytest.mark.parametrize(("kind", "schema"), CRDS, ids=[kind for kind, _ in CRDS])
def test_the_crd_and_the_record_agree(kind: str, schema: dict[str, Any]) -> None:
    record: type[Resource] = KINDS[kind]
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(record)}
    assert (
        list(
            itertools.chain(
                differences("spec", schema["properties"]["spec"], fields["spec"], defaults=True),
                differences("status", schema["properties"]["status"], fields["status"], defaults=False),
            )
        )
        == []
    )


def test_what_sparks_configuration_may_have() -> None:
    holds = compile_rule(conf_rule())

    def allows(key: str) -> bool:
        return bool(holds({"self": {key: ""}, "oldSelf": None}))

    for key in allowed_conf():
        assert allows(f"{key}x" if key.endswith(".") else key), key
    for key in (*ESCALATING_CONF, *(f"{key}x" for key in allowed_conf() if not key.endswith("."))):
        assert not allows(key), key


FREE = ("app.kubernetes.io/part-of", "app.kubernetes.io/version", "team")


@pytest.mark.parametrize("container", ["broker", "driver", "executor"])
def test_keys_that_belong_to_others_are_reserved_in_pods(container: str) -> None:
    reserved = ["x.kubernetes.io/x", "kubernetes.io/x", "k8s.io/x", "x.k8s.io/x", "millstream.dev/x"]
    spark = container in ("driver", "executor")
    free = "cluster-autoscaler.kubernetes.io/x"
    allowed = {
        "labels": {*FREE, *(() if spark else ("example.com/team",))},
        "annotations": {"team", free, *(() if spark else ("example.com/team",))},
    }
    keys = {*reserved, *FREE, free, "example.com/team", "controller-revision-hash"}
    for where, mine in allowed.items():
        for key in keys - ({"controller-revision-hash"} if where == "annotations" else set()):
            template = {"template": {"metadata": {where: {key: "x"}}}}
            spec = {"brokers": template} if not spark else {**LOAD, "spark": {container: template}}
            why = refusal("Cluster" if not spark else "BatchLoad", manifest("x", spec))
            assert bool(why) == (key not in mine), (where, key, why)


def records(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """A record's type and those inside it."""
    kind = bare(kind)
    if isinstance(origin := typing.get_origin(kind) or kind, type) and issubclass(origin, msgspec.Struct):
        yield origin
        for field in msgspec.structs.fields(kind):
            yield from records(field.type)
    else:
        for argument in typing.get_args(kind):
            yield from records(argument)


def test_what_a_resource_may_be_is_said_by_its_crd_alone() -> None:
    """A record has types; pods' have the bounds that are written into the CRDs; and one rule no CRD can say."""
    specs = {one for kind in (Cluster, Topic, ConsumerGroup, MirrorMaker) for one in records(kind)}
    own = {one for one in specs if hasattr(one, "__post_init__")}
    assert own == {MirrorPatterns}
    bounded = {
        one
        for one in specs
        if one.__module__ != "millstream_operator.models.pods"
        and one is not Metadata
        and any(
            value is not None
            for field in msgspec.structs.fields(one)
            for meta in getattr(field.type, "__metadata__", ())
            for value in (meta.ge, meta.le, meta.pattern, meta.min_length, meta.max_length)
        )
    }
    assert bounded == set()


def test_rules_that_are_waived_are_in_the_crd_and_new_resources_must_meet_them() -> None:
    spec = dict(CRDS)["Cluster"]["properties"]["spec"]["properties"]
    rules = {rule["rule"] for rule in spec["listeners"]["items"]["x-kubernetes-validations"]}
    assert rules >= WAIVED
    inside = {"name": "internal", "type": "Internal", "port": 9091}
    outside = {"name": "outside", "type": "NodePort", "port": 9094}
    stored = manifest("Cluster", {"listeners": [inside, outside]})
    assert refusal("Cluster", stored) == ""
    schema = dict(CRDS)["Cluster"]
    said = {problem.path for problem in validate(with_defaults(stored, schema), schema)}
    assert said == {"spec.listeners[0]", "spec.listeners[1]"}


@pytest.mark.parametrize("copy", ["charts/millstream/crds", "operator/src/millstream_operator/crds"])
def test_chart_and_operator_have_the_same_crds(copy: str) -> None:
    ours = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    copies = {path.name: path.read_text() for path in (ROOT / copy).glob("*.yaml")}
    assert copies == ours, "copy them: make definitions"


# What Kubernetes knows of a schema's node (JSONSchemaProps of apiextensions.k8s.io/v1) and we use.
SCHEMA_KEYS = {
    *("additionalProperties", "anyOf", "default", "description", "enum", "format", "items", "maxItems"),
    *("maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum"),
    *(
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
    ),
    *("x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"),
}


@pytest.mark.parametrize(("kind", "schema"), CRDS, ids=[kind for kind, _ in CRDS])
def test_every_node_of_a_schema_has_known_keys_only(kind: str, schema: dict[str, Any]) -> None:
    """An unquoted comma in `{description: Why, in words.}` makes a key of what comes after it."""

    def unknown(path: str, node: dict[str, Any]) -> Iterator[str]:
        yield from (f"{path}: {key!r}" for key in node.keys() - SCHEMA_KEYS)
        yield from (
            f"{path}: {key!r} of a rule"
            for rule in node.get("x-kubernetes-validations", ())
            for key in rule.keys() - {"rule", "message"}
        )
        if "description" in node and not node["description"].endswith("."):
            yield f"{path}: the description {node['description']!r} does not end with a full stop"
        for name, inner in node.get("properties", {}).items():
            yield from unknown(f"{path}.{name}", inner)
        for name in ("items", "additionalProperties"):
            if isinstance(node.get(name), dict):
                yield from unknown(f"{path}[]", node[name])
        for inner in node.get("anyOf", ()):
            yield from unknown(f"{path}|", inner)

    assert list(unknown("", schema)) == []


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "crds").glob("*.yaml")))
def test_a_definition_has_known_keys_only_outside_its_schema_too(file: str) -> None:
    crd = yaml.safe_load((ROOT / "crds" / file).read_text())
    (version,) = crd["spec"]["versions"]
    assert crd["spec"].keys() == {"group", "scope", "names", "versions"}
    assert version.keys() <= {
        *("name", "served", "storage", "subresources", "additionalPrinterColumns", "schema")
    }
    for column in version["additionalPrinterColumns"]:
        assert column.keys() <= {"name", "type", "jsonPath", "description", "priority"}, column


@pytest.mark.parametrize(("kind", "schema"), CRDS, ids=[kind for kind, _ in CRDS])
def test_every_field_is_described(kind: str, schema: dict[str, Any]) -> None:
    def undescribed(path: str, node: dict[str, Any]) -> Iterator[str]:
        for name, inner in node.get("properties", {}).items():
            if not inner.get("description"):
                yield f"{path}.{name}"
            yield from undescribed(f"{path}.{name}", inner)
        if "items" in node:
            yield from undescribed(f"{path}[]", node["items"])

    assert [p for part in ("spec", "status") for p in undescribed(part, schema["properties"][part])] == []
