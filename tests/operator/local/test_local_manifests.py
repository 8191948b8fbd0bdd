"""Manifests of the local runtime: every mistake is named, and nothing is applied in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream_operator.local.manifests import ManifestError, Manifests, read
from millstream_operator.local.state import key_of
from millstream_operator.validation.schema import crd_schemas, validate, with_defaults

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
HEAD = "apiVersion: millstream.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
CLUSTER = HEAD.format(kind="Cluster", name="west", spec="{}")


def document(kind: str, name: str, spec: str) -> str:
    return HEAD.format(kind=kind, name=name, spec=spec)


def take(folder: Path, *documents: str) -> Manifests:
    (folder / "all.yaml").write_text("---\n".join(documents))
    return read(folder, {})


def refused(folder: Path, *documents: str) -> str:
    with pytest.raises(ManifestError) as raised:
        take(folder, *documents)
    return str(raised.value).replace(f"{folder}/", "")


def test_resources_come_with_defaults_in_the_order_they_are_made(tmp_path: Path) -> None:
    found = take(tmp_path, document("Topic", "orders", "{clusterRef: {name: west}}"), "", CLUSTER)
    assert [key_of(resource) for resource in found.resources] == [
        "Cluster/default/west",
        "Topic/default/orders",
    ]
    topic = found.resources[1]["spec"]
    assert topic == {"clusterRef": {"name": "west"}, "config": {}, "deletionPolicy": "Retain"}
    assert found.resources[0]["spec"]["brokers"]["storage"]["size"] == "10Gi"


def test_a_file_and_a_list_are_taken_too(tmp_path: Path) -> None:
    file = tmp_path / "one.yml"
    indented = CLUSTER.replace("\n", "\n  ")
    file.write_text(f"kind: List\napiVersion: v1\nitems:\n- {indented}\n")
    assert len(read(file, {}).resources) == 1


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        (
            "Topic",
            "{clusterRef: {name: west}, partitons: 3}",
            "spec.partitons: unknown field; did you mean partitions? allowed here: clusterRef, config, "
            "deletionPolicy, partitions, replicationFactor, topicName",
        ),
        (
            "Cluster",
            "{brokers: {template: {spec: {hostPID: true}}}}",
            "spec.brokers.template.spec.hostPID: unknown field; allowed here: affinity, containers, imagePullSecrets, ",
        ),
        (
            "Cluster",
            "{brokers: {template: {metadata: {labels: {millstream.dev/cluster: other}}}}}",
            "spec.brokers.template.metadata.labels: labels: keys of kubernetes.io, k8s.io and millstream.dev are ",
        ),
        (
            "BatchLoad",
            "{clusterRef: {name: west}, topics: [a], value: {format: Binary}, output: {path: /x},"
            " spark: {conf: {spark.jars: /x.jar}}}",
            "spec.spark.conf: conf: a key is not allowed: it could change Spark's pods or load code",
        ),
        *(
            (
                "BatchLoad",
                "{clusterRef: {name: west}, topics: [a], value: {format: Binary}, output: {path: /x},"
                f" spark: {{conf: {{{conf}}}}}}}",
                "spec.spark.conf: conf: $( and ${ are not allowed: such a reference could show a Secret's value",
            )
            for conf in (
                "spark.driver.maxResultSize: $(AWS_SECRET_ACCESS_KEY)",
                "'spark.hadoop.fs.s3a.user.agent.prefix': '${env.AWS_SECRET_ACCESS_KEY}'",
                "'spark.hadoop.fs.$(AWS_SECRET_ACCESS_KEY)': x",
            )
        ),
        (
            "Topic",
            "{clusterRef: {name: west}, partitions: many}",
            'spec.partitions: "many" is not an integer',
        ),
        (
            "Topic",
            "{clusterRef: {name: west}, partitions: 0}",
            "spec.partitions: 0 is too small; allowed: 1 or more",
        ),
        ("Topic", "{partitions: 1}", "spec.clusterRef: is required"),
        (
            "Topic",
            "{clusterRef: {name: west}, topicName: a b}",
            'spec.topicName: "a b" is not allowed; allowed: letters, digits, ., _ and -',
        ),
        (
            "Topic",
            '{clusterRef: {name: west}, topicName: ".."}',
            'spec.topicName: ".." is not allowed; topicName: . and',
        ),
        (
            "Topic",
            "{clusterRef: {name: west}, config: {retention.ms: 5}}",
            "spec.config['retention.ms']: 5 is not a string; write \"5\" in quotes",
        ),
        (
            "Topic",
            "{clusterRef: {name: west}, deletionPolicy: Keep}",
            'spec.deletionPolicy: "Keep" is not allowed; allowed: Retain, Delete',
        ),
        (
            "Topic",
            "{clusterRef: {name: wst}}",
            'spec.clusterRef: there is no Cluster "wst" in namespace default; there is: "west" in namespace default',
        ),
        (
            "Topic",
            "{clusterRef: {name: west, namespace: other}}",
            'spec.clusterRef: there is no Cluster "west" in namespace other; there is: "west" in namespace default',
        ),
        (
            "ConsumerGroup",
            "{clusterRef: {name: west}, startAt: Latest}",
            "spec: startAt: list its topics",
        ),
        (
            "MirrorMaker",
            '{sources: [{name: w, bootstrap: "h:1"}], target: {clusterRef: {name: west}}, topics: {include: ["("]}}',
            "spec.topics: include: '(' is not a regular expression",
        ),
        (
            "MirrorMaker",
            '{sources: [{name: w}], target: {clusterRef: {name: west}}, topics: {include: ["a"]}}',
            "spec.sources[0]: sources: exactly one of clusterRef and bootstrap is required",
        ),
        (
            "BatchLoad",
            "{clusterRef: {name: west}, topics: [a], value: {format: JSON}, output: {path: /x}}",
            "spec.value: value: schema is required with formats JSON and CSV",
        ),
        ("Cluster", "{brokers: {storage: {size: big}}}", 'spec.brokers.storage.size: "big" is not allowed'),
        (
            "Cluster",
            r'{config: {"a\nlog.dirs": x}}',
            "spec.config: config: keys consist of letters, digits, '.', '_' and '-'",
        ),
        (
            "Cluster",
            "{listeners: [{name: http, type: Internal, port: 9092}]}",
            "spec.listeners[0]: listeners: the name http is taken by health and metrics",
        ),
        ("Cluster", "[1]", "spec: [1] is not an object"),
    ],
)
def test_mistakes_in_a_spec(tmp_path: Path, kind: str, spec: str, expected: str) -> None:
    assert f"all.yaml: {kind}/it: {expected}" in refused(tmp_path, CLUSTER, document(kind, "it", spec))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "apiVersion: millstream.dev/v1alpha1\nkind: Topik\nmetadata: {name: a}\n",
            'all.yaml: Topik/a: kind: "Topik" is unknown; allowed in millstream.dev/v1alpha1: Cluster, Topic,',
        ),
        (
            "kind: Topic\nmetadata: {name: a}\n",
            "all.yaml: Topic/a: apiVersion: (left out) is unknown; allowed:",
        ),
        (
            "apiVersion: millstream.dev/v2\nkind: Topic\nmetadata: {name: a}\n",
            'apiVersion: "millstream.dev/v2" is unknown',
        ),
        (
            "apiVersion: v1\nkind: Poddy\nmetadata: {name: a}\n",
            'kind: "Poddy" is unknown; allowed in v1: ConfigMap,',
        ),
        (
            document("Topic", "Orders", "{}"),
            'Topic/Orders: metadata.name: "Orders" is not allowed; allowed: lower-case',
        ),
        ("apiVersion: millstream.dev/v1alpha1\nkind: Topic\n", "Topic/no name: metadata: is required"),
        (
            f"{CLUSTER}sepc: {{}}\n",
            "Cluster/west: sepc: unknown field; did you mean spec? allowed here: apiVersion, kind, metadata, spec",
        ),
        (f"{CLUSTER}---\n{CLUSTER}", "Cluster/west: metadata.name: is in all.yaml already"),
        ("- 1\n", "all.yaml: document 1 is no object with apiVersion and kind"),
        (
            "kind: List\nitems: [1]\n",
            "all.yaml: document 1: items[0] is no object with apiVersion and kind",
        ),
        ("a: 1\na: 2\n", "all.yaml: line 2: not YAML: 'a' is there twice"),
        ("a: [1\n", "all.yaml: line 2: not YAML: "),
        ("a: !!python/object:os.system 1\n", "all.yaml: line 1: not YAML: could not determine a constructor"),
        ("", "has no resource of millstream.dev/v1alpha1"),
    ],
)
def test_mistakes_in_a_document(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refused(tmp_path, text)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text(
        document("Topic", "t", "{clusterRef: {name: x}, partitions: 0, more: 1}")
    )
    with pytest.raises(ManifestError) as raised:
        read(tmp_path, {})
    assert [problem.file.name for problem in raised.value.problems] == ["a.yaml", *["b.yaml"] * 3]


def test_a_mistake_of_the_schema_hides_no_other(tmp_path: Path) -> None:
    cluster = document("Cluster", "west", "{config: {num.partitons: '3'}, brokers: {replicas: 0}}")
    topic = document(
        "Topic", "t", "{clusterRef: {name: wst}, partitions: 0, config: {retention.ms: soon, x.y: [1]}}"
    )
    mirror = document(
        "MirrorMaker",
        "m",
        "{sources: [{alias: a, clusterRef: {name: est}}, 3], target: {clusterRef: 7}, "
        "topics: {include: ['(?=a)', '('], exclude: [')']}}",
    )
    load = document("BatchLoad", "l", "{clusterRef: {name: nrth}, schedule: {cron: '61 * * * *'}}")
    odd = document("Topic", "odd", "5")
    said = refused(tmp_path, cluster, topic, mirror, load, odd)
    for words in (
        "Cluster/west: spec.brokers.replicas: 0",
        "Cluster/west: spec.config: num.partitons: no such configuration key",
        "Topic/t: spec.partitions: 0",
        'Topic/t: spec.clusterRef: there is no Cluster "wst"',
        "Topic/t: spec.config: Invalid value soon",
        "Topic/t: spec.config['x.y']",
        "MirrorMaker/m: spec.sources[1]",
        'MirrorMaker/m: spec.sources[0].clusterRef: there is no Cluster "est"',
        "MirrorMaker/m: spec.topics: include: '(?=a)' is not a regular expression",
        "exclude: ')' is not a regular expression",
        "BatchLoad/l: spec.output: is required",
        'BatchLoad/l: spec.clusterRef: there is no Cluster "nrth"',
        "BatchLoad/l: spec.schedule: ",
        "Topic/odd: spec: ",
    ):
        assert words in said


@pytest.mark.parametrize("name", ["nothing-here", "empty"])
def test_folders_without_manifests(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ManifestError, match=r"there is no such folder|has no file"):
        read(tmp_path / name, {})


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="cannot be read"):
        read(tmp_path, {})


def test_what_may_not_change_is_refused(tmp_path: Path) -> None:
    topic = "{clusterRef: {name: west}, topicName: a, partitions: 3}"
    known = {key_of(r): r for r in take(tmp_path, CLUSTER, document("Topic", "t", topic)).resources}
    known["Topic/default/t"]["status"] = {"partitions": 3}
    (tmp_path / "all.yaml").write_text(
        document("Topic", "t", "{clusterRef: {name: west}, topicName: b, partitions: 3}")
    )
    with pytest.raises(ManifestError, match=r"spec\.topicName: cannot change"):
        read(tmp_path, known)
    (tmp_path / "all.yaml").write_text(
        document("Topic", "t", "{clusterRef: {name: west}, topicName: a, partitions: 2}")
    )
    with pytest.raises(
        ManifestError, match=r"spec\.partitions: 2 is not allowed: the topic has 3 partitions"
    ):
        read(tmp_path, known)


def test_the_zookeeper_of_a_cluster_cannot_be_another(tmp_path: Path) -> None:
    def cluster(connect: str) -> str:
        return document("Cluster", "west", f"{{zookeeper: {{connect: '{connect}'}}}}")

    known = {key_of(r): r for r in take(tmp_path, cluster("zk:2181/west")).resources}
    for other in ("zk:2181/wets", "zk:2181", "other:2181/west"):
        (tmp_path / "all.yaml").write_text(cluster(other))
        with pytest.raises(ManifestError, match=r"zookeeper\.connect: cannot change: .* mirror into it"):
            read(tmp_path, known)
    (tmp_path / "all.yaml").write_text(cluster("zk:2181/west"))
    assert len(read(tmp_path, known).resources) == 1


def test_a_cluster_of_another_folder_may_be_referred_to(tmp_path: Path) -> None:
    known = {key_of(r): r for r in take(tmp_path, CLUSTER).resources}
    (tmp_path / "all.yaml").write_text(document("Topic", "t", "{clusterRef: {name: west}}"))
    assert len(read(tmp_path, known).resources) == 1


def test_what_has_no_effect_here_is_known(tmp_path: Path) -> None:
    cluster = document(
        "Cluster",
        "west",
        "{image: x, listeners: [{name: i, type: Internal, port: 9092},"
        " {name: o, type: NodePort, port: 9094, allowPlaintext: true}],"
        " brokers: {storage: {}, replicas: 2}, zookeeper: {replicas: 3, storage: {}}}",
    )
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: lake}\nspec: {anything: goes}\n"
    assert take(tmp_path, cluster, claim).without_effect == [
        "Cluster/west: spec.brokers.storage",
        "Cluster/west: spec.image",
        "Cluster/west: spec.listeners[].type",
        "Cluster/west: spec.zookeeper.replicas above 1",
        "Cluster/west: spec.zookeeper.storage",
        "PersistentVolumeClaim/lake: belongs to Kubernetes",
    ]


def test_times_stay_text_and_keys_become_text(tmp_path: Path) -> None:
    load = document(
        "BatchLoad",
        "daily",
        "{clusterRef: {name: west}, topics: [a], value: {format: Binary}, output: {path: /x},"
        " from: {position: Timestamp, timestamp: 2026-11-20T00:00:00Z}}",
    )
    cluster, taken = take(tmp_path, CLUSTER, load).resources
    assert cluster["kind"] == "Cluster"
    assert taken["spec"]["from"]["timestamp"] == "2026-11-20T00:00:00Z"
    topic = document("Topic", "a", "{clusterRef: {name: west}, config: {2: a, true: b}}")
    said = refused(tmp_path, CLUSTER, topic)
    assert [line.rpartition(": ")[2] for line in said.splitlines()] == ["2", "true"]


def test_only_numbers_that_kubernetes_knows_are_numbers(tmp_path: Path) -> None:
    """YAML 1.1 has numbers to the base 60 as well, and Kubernetes' parser has not."""
    topic = document("Topic", "a", "{clusterRef: {name: west}, config: {a: 10:30, b: 1:30.5, c: '5'}}")
    said = refused(tmp_path, CLUSTER, topic)
    assert "config.c" not in said
    assert 'write "' not in said, "a and b are texts"


def test_configuration_is_checked_with_everything_else(tmp_path: Path) -> None:
    cluster = document(
        "Cluster", "west", "{config: {log.retention.hours: soon, num.partitons: '3', broker.id: '7'}}"
    )
    together = document(
        "Cluster", "east", "{config: {group.min.session.timeout.ms: '9', group.max.session.timeout.ms: '8'}}"
    )
    topic = document("Topic", "a", "{clusterRef: {name: wst}, config: {retention.ms: soon, x.y: '1'}}")
    bad = document("Topic", "b", "{clusterRef: {name: west}, partitions: 0}")
    assert refused(tmp_path, cluster, together, topic, bad).splitlines() == [
        "all.yaml: Topic/b: spec.partitions: 0 is too small; allowed: 1 or more",
        'all.yaml: Topic/a: spec.clusterRef: there is no Cluster "wst" in namespace default; there is: '
        '"east" in namespace default, "west" in namespace default',
        "all.yaml: Cluster/west: spec.config: broker.id: not allowed: the runtime decides this key",
        "all.yaml: Cluster/west: spec.config: Invalid value soon for configuration log.retention.hours: "
        "Not a number of type INT",
        "all.yaml: Cluster/west: spec.config: num.partitons: no such configuration key; did you mean num.partitions?",
        "all.yaml: Cluster/east: spec.config: group.min.session.timeout.ms=9: expected no more than "
        "group.max.session.timeout.ms=8",
        "all.yaml: Topic/a: spec.config: Invalid value soon for configuration retention.ms: "
        "Not a number of type LONG",
        "all.yaml: Topic/a: spec.config: Unknown topic config name: x.y",
    ]


def test_configuration_that_was_taken_before_is_not_checked_again(tmp_path: Path) -> None:
    known = {key_of(one): one for one in take(tmp_path, CLUSTER).resources}
    known["Cluster/default/west"]["spec"]["config"] = {"no.such.key": "1"}
    (tmp_path / "all.yaml").write_text(document("Cluster", "west", "{config: {no.such.key: '1'}}"))
    assert len(read(tmp_path, known).resources) == 1


@pytest.mark.parametrize(
    "example", sorted({path.parent.name for path in (ROOT / "examples").glob("*/*.yaml")})
)
def test_every_example_is_valid(example: str) -> None:
    assert read(ROOT / "examples" / example, {}).resources


def test_the_port_of_the_internal_listener_stays() -> None:
    schema = crd_schemas()["Cluster"]["properties"]["spec"]

    def problems(before: list[Any], after: list[Any]) -> list[str]:
        old, new = (with_defaults({"listeners": listeners}, schema) for listeners in (before, after))
        return [problem.what for problem in validate(new, schema, old=old)]

    inside = {"name": "internal", "type": "Internal", "port": 9092}
    outside = {"name": "outside", "type": "NodePort", "port": 9094, "allowPlaintext": True}
    moved = {**inside, "port": 9093}
    for before, after in (
        ([], [moved]),
        ([moved], []),
        ([inside, outside], [{**inside, "port": 9095}, outside]),
    ):
        (problem,) = problems(before, after)
        assert problem.startswith("listeners: the port of the Internal listener cannot change")
    for before, after in (([], [outside, inside]), ([moved], [moved, outside]), ([moved, outside], [moved])):
        assert problems(before, after) == []


def test_an_external_listener_must_allow_plain_text_unless_it_was_there_before() -> None:
    schema = crd_schemas()["Cluster"]["properties"]["spec"]
    inside = {"name": "internal", "type": "Internal", "port": 9092}
    outside = {"name": "outside", "type": "NodePort", "port": 9094}

    def problems(before: list[Any] | None, after: list[Any]) -> list[str]:
        old, new = (
            None if listeners is None else with_defaults({"listeners": listeners}, schema)
            for listeners in (before, after)
        )
        return [problem.what for problem in validate(new, schema, old=old)]

    assert problems([outside, inside], [inside, outside]) == []
    assert problems(None, [inside, {**outside, "allowPlaintext": True}]) == []
    for before, after in (
        (None, outside),
        ([inside], outside),
        ([inside, outside], {**outside, "port": 9095}),
    ):
        (problem,) = problems(before, [inside, after])
        assert "needs allowPlaintext: true" in problem


def test_a_schema_knows_lists_by_key() -> None:
    schema = crd_schemas()["Cluster"]["properties"]["spec"]
    listener = {"name": "a", "type": "Internal", "port": 9092}
    value = with_defaults({"listeners": [listener, {**listener, "port": 9093}]}, schema)
    assert "spec.listeners[1]" in {problem.path for problem in validate(value, schema, path="spec")}
    grown = {"brokers": {"storage": {"size": "2Gi"}}}
    assert list(validate(with_defaults(grown, schema), schema, old=with_defaults({}, schema))) != []
    assert list(validate(with_defaults({}, schema), schema, old=with_defaults(grown, schema))) == []


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        ({"type": "integer", "format": "int32"}, 2**31, ""),
        ({"type": "boolean"}, "yes", ""),
        ({"type": "integer"}, True, ""),
        ({"type": "string", "format": "date-time"}, "yesterday", ""),
        ({"type": "array", "maxItems": 1, "items": {"type": "string"}}, ["a", "b"], ""),
        ({"type": "array", "items": {"type": "string"}}, [1], "[0]"),
        ({"type": "array", "x-kubernetes-list-type": "set", "items": {}}, ["a", "a"], "[1]"),
        ({"type": "object", "maxProperties": 0, "additionalProperties": True}, {"a": 1}, ""),
        ({"x-kubernetes-int-or-string": True}, 1.5, ""),
        ({"type": "string", "maxLength": 2}, "abc", ""),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, 1, ""),
        ({"type": "string"}, None, ""),
    ],
)
def test_values_a_schema_refuses(schema: dict[str, object], value: object, path: str) -> None:
    (problem,) = validate(value, schema)
    assert problem.path == path


def test_values_a_schema_takes() -> None:
    assert list(validate(None, {"type": "string", "nullable": True})) == []
    assert (
        list(validate({"a": {"b": 1}}, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
        == []
    )
    assert list(validate("10Gi", {"x-kubernetes-int-or-string": True})) == []
    assert with_defaults({"a": None}, {"properties": {"a": {"default": 3}}}) == {"a": 3}


MIRROR = """{sources: [{name: kafka, bootstrap: "k:9093", sasl: {mechanism: PLAIN, username: {value: me},
  password: {secretKeyRef: {name: login, key: password}}}}], target: {clusterRef: {name: west}},
  topics: {include: [a]}}"""
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\n{values}\n"


def test_secrets_that_mirrors_name_are_taken(tmp_path: Path) -> None:
    values = "data: {password: b25l, more: dHdv}\nstringData: {password: three}"
    found = take(
        tmp_path,
        CLUSTER,
        document("MirrorMaker", "m", MIRROR),
        SECRET.format(name="login", values=values),
        SECRET.format(name="other", values="stringData: {a: b}"),
    )
    assert found.secrets == {("default", "login"): {"password": b"three", "more": b"two"}}
    assert found.without_effect == ["Secret/other: belongs to Kubernetes"]
    assert "three" not in str(found.resources)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("data: {password: hunter2!}", "data.password: is not base64; stringData takes plain text"),
        ("stringData: {password: 4711}", "stringData.password: must be a text; put it in quotes"),
        ("data: [hunter2!]", "data: must be an object of texts"),
    ],
)
def test_a_bad_secret_is_named_without_its_values(tmp_path: Path, values: str, expected: str) -> None:
    said = refused(tmp_path, CLUSTER, SECRET.format(name="login", values=values))
    assert said == f"all.yaml: Secret/login: {expected}"
    assert "hunter2" not in said
    assert "4711" not in said
    twice = SECRET.format(name="login", values="stringData: {a: b}")
    assert "metadata.name: is there twice" in refused(tmp_path, CLUSTER, twice, twice)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{name: w, clusterRef: {name: west}, tls: {}}", "tls and sasl are for bootstrap only"),
        (
            "{name: w, bootstrap: 'k:1', tls: {certificate: {secretKeyRef: {name: a, key: b}}}}",
            "set both certificate and key, or neither",
        ),
        (
            "{name: w, bootstrap: 'k:1', tls: {caCertificates: [{secretKeyRef: {name: a, key: ../b}}]}}",
            "spec.sources[0].tls.caCertificates[0].secretKeyRef.key",
        ),
        (
            "{name: w, bootstrap: 'k:1', sasl: {mechanism: GSSAPI, username: {value: a}, password: {}}}",
            "allowed: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        (
            "{name: w, bootstrap: 'k:1', sasl: {mechanism: PLAIN, username: {}, "
            "password: {secretKeyRef: {name: a, key: b}}}}",
            "exactly one of value and secretKeyRef is required",
        ),
    ],
)
def test_credentials_that_are_not_allowed(tmp_path: Path, source: str, expected: str) -> None:
    spec = f"{{sources: [{source}], target: {{bootstrap: 'k:2'}}, topics: {{include: [a]}}}}"
    assert expected in refused(tmp_path, document("MirrorMaker", "m", spec))
