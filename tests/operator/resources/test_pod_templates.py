"""Users' pod settings: one model, one merge and one rule for all pods of the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream_harness.specs import LOAD, manifest
from millstream_operator.models import API_VERSION, ManifestError, Resource
from millstream_operator.models.pods import ALLOWED_ENV, RESERVED_ENV, RESERVED_VOLUMES, SPARK
from millstream_operator.resources import cluster as brokers
from millstream_operator.resources import load as loads
from millstream_operator.resources import mirror as mirrors
from millstream_operator.resources import zookeeper
from millstream_operator.resources.load_job import job
from millstream_operator.resources.load_spark_application import spark_application
from millstream_operator.state.context import Images
from millstream_operator.tools.definitions import CONTAINERS, template_schema, with_templates
from millstream_operator.validation.admission import decode, refusal
from millstream_operator.validation.schema import validate, with_defaults

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
IMAGES = Images()
Spec = dict[str, Any]


def cluster(**spec: Any) -> Any:
    return made("Cluster", {"brokers": {"replicas": 3, **spec.pop("brokers", {})}, **spec})


def load(**spark: Any) -> Any:
    spec = {
        "clusterRef": {"name": "east"},
        "topics": ["t"],
        "value": {"format": "Binary"},
        "output": {"path": "/lake/t", "volumeClaimName": "lake"},
        "spark": spark,
    }
    return made("BatchLoad", spec, {"lastRun": {"name": "x-0001", "state": "Pending"}})


def mirror(**spec: Any) -> Any:
    wanted = {
        "sources": [{"name": "west", "bootstrap": "west:9092"}],
        "target": {"bootstrap": "east:9092"},
        "topics": {"include": [".*"]},
    }
    return made("MirrorMaker", {**wanted, **spec})


def made(kind: str, spec: Spec, status: Spec | None = None) -> Resource:
    metadata = {"name": "x", "namespace": "ns", "uid": "u-1"}
    document = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    return decode({**document, **({"status": status} if status else {})})


def broker_pod(more: Spec) -> Spec:
    wanted = cluster(brokers=more, zookeeper={"replicas": 3})
    found: Spec = brokers.stateful_set(wanted, image="b", pull_policy="Never")["spec"]["template"]
    return found


def zookeeper_pod(more: Spec) -> Spec:
    wanted = cluster(zookeeper={"replicas": 3, **more})
    *_, ensemble = zookeeper.objects(wanted, image="z", pull_policy="Never")
    found: Spec = ensemble["spec"]["template"]
    return found


def mirror_pod(more: Spec) -> Spec:
    found: Spec = mirrors.deployment(mirror(**more), {}, IMAGES)["spec"]["template"]
    return found


def job_pod(more: Spec) -> Spec:
    found: Spec = job(load(driver=more), IMAGES)["spec"]["template"]
    return found


def driver_pod(more: Spec) -> Spec:
    found: Spec = spark_application(load(driver=more), IMAGES)["spec"]["driver"]["template"]
    return found


def executor_pod(more: Spec) -> Spec:
    return {**loads.executor_template(load(executor=more), IMAGES)}


def application_executor_pod(more: Spec) -> Spec:
    found: Spec = spark_application(load(executor=more), IMAGES)["spec"]["executor"]["template"]
    return found


# Each pod of the operator: its container as users and as the operator name it, and its builder.
PODS: dict[str, tuple[str, str, Callable[[Spec], Spec]]] = {
    "brokers": ("broker", "broker", broker_pod),
    "zookeeper": ("zookeeper", "zookeeper", zookeeper_pod),
    "mirror": ("mirror", "mirror", mirror_pod),
    "job": ("driver", "driver", job_pod),
    "job's executors": ("executor", "spark-kubernetes-executor", executor_pod),
    "application's driver": ("driver", "spark-kubernetes-driver", driver_pod),
    "application's executors": ("executor", "spark-kubernetes-executor", application_executor_pod),
}
every_pod = pytest.mark.parametrize(
    ("container", "name", "build"), PODS.values(), ids=[name.replace(" ", "-") for name in PODS]
)
every_template = pytest.mark.parametrize(
    ("container", "build"),
    {container: (container, build) for container, _, build in PODS.values()}.values(),
    ids=list(dict.fromkeys(container for container, _, _ in PODS.values())),
)


WEBHOOKS = (
    *(
        "sidecar.istio.io/inject",
        "sidecar.istio.io/proxyImage",
        "linkerd.io/inject",
        "iam.amazonaws.com/role",
    ),
    *("vault.hashicorp.com/agent-inject", "vault.hashicorp.com/agent-inject-command", "example.com/any"),
)
"""Annotations that inject containers or rights into pods, in clusters with such controllers."""


def full(container: str) -> Spec:
    """A template with every allowed field."""
    return {
        "metadata": {"labels": {"team": "x"}, "annotations": {"purpose": "c"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "disk", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "topologySpreadConstraints": [
                {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "high",
            "terminationGracePeriodSeconds": 90,
            "volumes": [
                {
                    "name": "ca",
                    "configMap": {"name": "company-ca", "items": [{"key": "ca", "path": "ca.crt"}]},
                },
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
            ],
            "containers": [
                {
                    "name": container,
                    "env": [{"name": "TZ", "value": "UTC"}],
                    "volumeMounts": [
                        {"name": "ca", "mountPath": "/mnt/ca", "readOnly": True},
                        {"name": "scratch", "mountPath": "/mnt/scratch/a.b"},
                    ],
                }
            ],
        },
    }


def by_name(entries: list[Spec], key: str = "name") -> dict[str, Spec]:
    return {entry[key]: entry for entry in entries}


@every_pod
def test_every_pod_takes_a_template_and_loses_nothing(
    container: str, name: str, build: Callable[[Spec], Spec]
) -> None:
    plain, wanted = build({}), full(container)
    pod = build({"template": wanted})
    labels, annotations = (pod["metadata"].get(what, {}) for what in ("labels", "annotations"))
    assert labels == plain["metadata"]["labels"] | wanted["metadata"]["labels"]
    assert annotations.items() >= wanted["metadata"]["annotations"].items()
    for field in ("nodeSelector", "tolerations", "imagePullSecrets", "priorityClassName"):
        assert pod["spec"][field] == wanted["spec"][field]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 90
    assert pod["spec"]["affinity"] == plain["spec"].get("affinity", {}) | wanted["spec"]["affinity"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items(), "it counts its own pods"

    (one,), (before,) = pod["spec"]["containers"], plain["spec"]["containers"]
    assert one["name"] == before["name"] == name
    for part, key in (("env", "name"), ("volumeMounts", "mountPath")):
        theirs = wanted["spec"]["containers"][0][part]
        assert by_name(one[part], key) == by_name(before.get(part, []), key) | by_name(theirs, key)
    volumes = by_name(pod["spec"]["volumes"])
    assert volumes == by_name(plain["spec"].get("volumes", [])) | by_name(wanted["spec"]["volumes"])
    for left in ("securityContext", "automountServiceAccountToken", "serviceAccountName", "initContainers"):
        assert pod["spec"].get(left) == plain["spec"].get(left)
    assert one["securityContext"] == before["securityContext"]
    assert (one.get("image"), one.get("resources")) == (before.get("image"), before.get("resources"))


@every_pod
def test_the_names_that_the_operator_uses_are_reserved(
    container: str, name: str, build: Callable[[Spec], Spec]
) -> None:
    pod = build({})
    assert {volume["name"] for volume in pod["spec"].get("volumes", [])} <= RESERVED_VOLUMES
    own = {variable["name"] for one in pod["spec"]["containers"] for variable in one.get("env", ())}
    assert (
        own.isdisjoint(ALLOWED_ENV) if container in ("driver", "executor") else own == RESERVED_ENV[container]
    )
    for key in pod["metadata"]["labels"]:
        with pytest.raises(ManifestError, match=r"are reserved|are not allowed"):
            build({"template": {"metadata": {"labels": {key: "mine"}}}})


def one_container(container: str, **more: Any) -> Spec:
    return {"spec": {"containers": [{"name": container, **more}]}}


def mounted(container: str, path: str, name: str = "v") -> Spec:
    spec = one_container(container, volumeMounts=[{"name": name, "mountPath": path}])["spec"]
    return {"spec": {**spec, "volumes": [{"name": "v", "emptyDir": {}}]}}


def refused_of(container: str) -> Iterator[tuple[str, Spec]]:
    """Templates that would give a pod more rights, or override the operator's settings."""
    for field, value in {
        "hostPID": True,
        "hostNetwork": True,
        "securityContext": {"runAsUser": 0},
        "serviceAccountName": "admin",
        "initContainers": [{"name": container}],
        "nodeName": "control-plane",
        "runtimeClassName": "none",
    }.items():
        yield field, {"spec": {field: value}}
    for kind, volume in {
        "hostPath": {"path": "/"},
        "secret": {"secretName": "s"},
        "persistentVolumeClaim": {"claimName": "theirs"},
        "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
        "csi": {"driver": "secrets-store.csi.k8s.io"},
        "nfs": {"server": "nfs", "path": "/"},
        "ephemeral": {"volumeClaimTemplate": {}},
    }.items():
        yield kind, {"spec": {"volumes": [{"name": "v", kind: volume}]}}
    yield "two kinds", {"spec": {"volumes": [{"name": "v", "emptyDir": {}, "configMap": {"name": "c"}}]}}
    yield "no kind", {"spec": {"volumes": [{"name": "v"}]}}
    for name in RESERVED_VOLUMES:
        yield f"volume {name}", {"spec": {"volumes": [{"name": name, "emptyDir": {}}]}}
    twice = [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]
    yield "volume twice", {"spec": {"volumes": twice}}
    for path in ("/", "/mnt", "/mnt/../etc", "/etc/ssl", "/opt/spark/jars", "/mntx/a", "/mnt//a", "/mnt/.a"):
        yield f"mount {path}", mounted(container, path)
    yield "our volume", mounted(container, "/mnt/x", "data")
    for field, value in {
        "securityContext": {"privileged": True},
        "image": "mine",
        "command": ["sh"],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "lifecycle": {},
        "ports": [{"containerPort": 1, "hostPort": 1}],
        "resources": {},
    }.items():
        yield f"container's {field}", one_container(container, **{field: value})
    secret = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    yield "env from a Secret", one_container(container, env=[secret])
    for name in RESERVED_ENV.get(container, ()):
        yield f"env {name}", one_container(container, env=[{"name": name, "value": "x"}])
    if container in ("driver", "executor"):
        for name in (
            *(
                "AWS_CONFIG_FILE",
                "HADOOP_CONF_DIR",
                "JAVA_TOOL_OPTIONS",
                "LD_PRELOAD",
                "PATH",
                "PYSPARK_PYTHON",
            ),
            *("PYTHONPATH", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_SUBMIT_OPTS"),
        ):
            yield f"env {name}", one_container(container, env=[{"name": name, "value": "x"}])
        for key in WEBHOOKS:
            for where in ("labels", "annotations"):
                yield f"{where} {key}", {"metadata": {where: {key: "true"}}}
    yield "another container", one_container("sidecar")
    yield "system class", {"spec": {"priorityClassName": "system-node-critical"}}
    yield "reserved label", {"metadata": {"labels": {"millstream.dev/cluster": "b"}}}
    yield "reserved annotation", {"metadata": {"annotations": {"x.kubernetes.io/y": "b"}}}


@every_pod
def test_sparks_pods_alone_have_no_container_of_a_service_mesh(
    container: str, name: str, build: Callable[[Spec], Spec]
) -> None:
    metadata = build({})["metadata"]
    said = (
        metadata["labels"].get("sidecar.istio.io/inject"),
        metadata.get("annotations", {}).get("linkerd.io/inject"),
    )
    assert said == (("false", "disabled") if container in SPARK else (None, None))


def problems(container: str, template: Spec) -> list[str]:
    """The API server's reasons to refuse a template, by the CRDs."""
    schema = template_schema(container)
    return [str(problem) for problem in validate(with_defaults(template, schema), schema)]


@every_template
def test_what_could_escalate_is_refused(container: str, build: Callable[[Spec], Spec]) -> None:
    assert problems(container, full(container)) == []
    build({"template": full(container)})
    for what, template in refused_of(container):
        assert problems(container, template), what
        with pytest.raises(ManifestError) as error:
            build({"template": template})
        assert "\n" not in str(error.value), what
        assert "template" in str(error.value), what


def test_an_error_in_a_template_names_the_field_and_what_is_allowed() -> None:
    with pytest.raises(ManifestError) as error:
        mirror_pod({"template": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}})
    assert str(error.value) == (
        "MirrorMaker x: spec.template.spec.volumes[0].hostPath: unknown field; "
        "allowed here: configMap, emptyDir, name"
    )
    with pytest.raises(ManifestError) as error:
        job_pod({"template": one_container("executor")})
    assert str(error.value) == (
        'BatchLoad x: spec.spark.driver.template.spec.containers[0].name: "executor" is not allowed; '
        "allowed: driver"
    )
    with pytest.raises(ManifestError, match="env: Spark's pods may have AWS_DEFAULT_REGION, "):
        executor_pod({"template": one_container("executor", env=[{"name": "PYTHONPATH"}])})


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "crds").glob("*.yaml")))
def test_the_templates_of_a_definition_are_current(file: str) -> None:
    text = (ROOT / "crds" / file).read_text()
    assert with_templates(text) == text, "write them anew: make definitions"


def test_every_container_has_a_template_in_a_definition() -> None:
    text = "".join(path.read_text() for path in (ROOT / "crds").glob("*.yaml"))
    for container in CONTAINERS:
        assert text.count(f"# pod template of {container},") == 1
    assert {container for container, _, _ in PODS.values()} == CONTAINERS.keys()
    cluster_crd = yaml.safe_load((ROOT / "crds/clusters.yaml").read_text())
    spec = cluster_crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["properties"]["zookeeper"]["properties"]["template"] == template_schema("zookeeper")


@pytest.mark.parametrize(
    ("build", "before"),
    [
        (broker_pod, {"requests": {"cpu": "250m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}),
        (zookeeper_pod, {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}),
        (mirror_pod, {"requests": {"cpu": "100m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}),
    ],
)
def test_resources_have_defaults_by_part(build: Callable[[Spec], Spec], before: Spec) -> None:
    def resources(more: Spec) -> Spec:
        found: Spec = build(more)["spec"]["containers"][0]["resources"]
        return found

    assert resources({}) == before
    assert resources({"resources": {"limits": {}}}) == {**before, "limits": {}}
    wanted = {
        "requests": {"cpu": 2, "memory": "1Gi"},
        "limits": {"memory": "3Gi", "ephemeral-storage": "1Gi"},
    }
    assert resources({"resources": wanted}) == wanted


@pytest.mark.parametrize(
    ("resources", "heap"),
    [
        ({}, "256"),
        ({"limits": {"memory": "2Gi"}}, "1024"),
        ({"limits": {}, "requests": {"memory": "1Gi"}}, "512"),
        ({"limits": {}, "requests": {}}, "256"),
    ],
)
def test_a_zookeeper_servers_heap_follows_its_memory(resources: Spec, heap: str) -> None:
    env = by_name(zookeeper_pod({"resources": resources})["spec"]["containers"][0]["env"])
    assert env["ZK_SERVER_HEAP"]["value"] == heap


def conf_of(wanted: Any) -> dict[str, str]:
    arguments = job(wanted, IMAGES)["spec"]["template"]["spec"]["containers"][0]["args"]
    return dict(argument.split("=", 1) for argument in arguments if argument.startswith("spark."))


def test_resources_of_a_load_reach_spark_and_the_pods() -> None:
    resources = {
        "requests": {"cpu": "500m", "ephemeral-storage": "2Gi"},
        "limits": {"cpu": 2, "ephemeral-storage": "4Gi"},
    }
    others = {"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "4Gi"}}
    wanted = load(driver={"resources": resources}, executor={"resources": resources})
    conf = conf_of(wanted)
    assert conf["spark.kubernetes.executor.request.cores"] == "500m"
    assert conf["spark.kubernetes.executor.limit.cores"] == "2"
    driver = job(wanted, IMAGES)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert driver == {
        "requests": {"cpu": "500m", "memory": "1434Mi", "ephemeral-storage": "2Gi"},
        "limits": {"cpu": "2", "memory": "1434Mi", "ephemeral-storage": "4Gi"},
    }
    application = spark_application(wanted, IMAGES)["spec"]
    for role in ("driver", "executor"):
        assert (application[role]["coreRequest"], application[role]["coreLimit"]) == ("500m", "2")
        assert application[role]["template"]["spec"]["containers"][0]["resources"] == others
    plain = spark_application(load(), IMAGES)["spec"]["driver"]
    assert "coreLimit" not in plain
    assert "resources" not in plain["template"]["spec"]["containers"][0]


def test_spark_has_its_memory_from_elsewhere() -> None:
    with pytest.raises(ManifestError, match="memory follows from the Java process"):
        load(driver={"resources": {"limits": {"memory": "1Gi"}}})


RACK = {"rack": {"topologyKey": "example.com/rack"}}


@pytest.mark.parametrize("component", ["broker", "zookeeper"])
def test_racks_spread_the_pods_unless_their_template_says_otherwise(component: str) -> None:
    def spread(more: Spec) -> list[Spec]:
        wanted = cluster(
            brokers={**RACK, **(more if component == "broker" else {})},
            zookeeper={"replicas": 3, **(more if component == "zookeeper" else {})},
        )
        if component == "broker":
            manifest = brokers.stateful_set(wanted, image="b", pull_policy="Never")
        else:
            *_, manifest = zookeeper.objects(wanted, image="z", pull_policy="Never")
        found: list[Spec] = manifest["spec"]["template"]["spec"]["topologySpreadConstraints"]
        return found

    own = {"millstream.dev/cluster": "x", "app.kubernetes.io/component": component}
    assert spread({}) == [
        {
            "maxSkew": 1,
            "topologyKey": "example.com/rack",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": own},
        }
    ]
    theirs = full(component)["spec"]["topologySpreadConstraints"]
    (found,) = spread({"template": {"spec": {"topologySpreadConstraints": theirs}}})
    assert found["topologyKey"] == "zone"
    assert "topologySpreadConstraints" not in broker_pod({})["spec"]


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
