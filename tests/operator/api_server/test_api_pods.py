"""Every pod of the operator, in a namespace that enforces the "restricted" Pod Security Standard."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from millstream_harness.kube import CommandFailed, Namespace, run
from millstream_operator.models import BatchLoad, Cluster, ConsumerGroup, MirrorMaker, decode_as
from millstream_operator.resources import cluster as brokers
from millstream_operator.resources import load as loads
from millstream_operator.resources import mirror as mirrors
from millstream_operator.resources import workload as workloads
from millstream_operator.resources import zookeeper
from millstream_operator.resources.load_job import job
from millstream_operator.resources.load_spark_application import spark_application
from millstream_operator.resources.pod_access import PodAccess
from millstream_operator.resources.pod_user import PodPassword
from millstream_operator.resources.volumes import UserIds
from millstream_operator.state.context import Images

pytestmark = pytest.mark.process

Spec = dict[str, Any]
LABEL = "pod-security.kubernetes.io/enforce=restricted"
VOLUMES = [{"name": "scratch", "emptyDir": {}}, {"name": "ca", "configMap": {"name": "ca"}}]


@pytest.fixture(scope="module")
def restricted(module_namespace: Namespace) -> Namespace:
    run("kubectl", "label", "namespace", module_namespace.name, LABEL)
    module_namespace.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": loads.SERVICE_ACCOUNT}}
    )
    return module_namespace


def template(container: str) -> Spec:
    """A template with every field that the standard concerns."""
    mounts = [{"name": "scratch", "mountPath": "/mnt/a"}, {"name": "ca", "mountPath": "/mnt/b"}]
    env = [{"name": "TZ", "value": "UTC"}]
    containers = [{"name": container, "env": env, "volumeMounts": mounts}]
    return {"spec": {"volumes": VOLUMES, "containers": containers}}


def decoded(kind: Any, spec: Spec, status: Spec | None = None) -> Any:
    metadata = {"name": "x", "namespace": "ns", "uid": "u-1"}
    document = {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": kind.KIND,
        "metadata": metadata,
        "spec": spec,
    }
    return decode_as(kind, {**document, **({"status": status} if status else {})})


def of_set(stateful_set: Spec) -> Spec:
    """A StatefulSet's pod, with the volumes that its controller adds."""
    template = stateful_set["spec"]["template"]
    claims = [one["metadata"]["name"] for one in stateful_set["spec"]["volumeClaimTemplates"]]
    added = [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-x-0"}} for name in claims]
    return {**template, "spec": {**template["spec"], "volumes": [*template["spec"]["volumes"], *added]}}


def pods(user_ids: UserIds, *, owner: bool = False) -> Iterator[tuple[str, Spec]]:
    """A template of each pod. With ``owner``, it has the init container that changes a volume's owner."""
    images = dataclasses.replace(Images(), user_ids=user_ids)
    options: Spec = {"image": "i", "pull_policy": "Never", "user_ids": user_ids, "owner": owner}
    cluster = decoded(
        Cluster,
        {
            "brokers": {"replicas": 3, "rack": {}, "template": template("broker")},
            "zookeeper": {"replicas": 3, "template": template("zookeeper")},
            "listeners": [
                {"name": "internal", "type": "Internal", "port": 9092},
                {"name": "nodes", "type": "NodePort", "port": 9094},
            ],
        },
    )
    *_, ensemble = zookeeper.objects(cluster, **options)
    yield "broker", of_set(brokers.stateful_set(cluster, racks=True, **options))
    yield "zookeeper", of_set(ensemble)
    mirror = decoded(
        MirrorMaker,
        {
            "sources": [{"name": "west", "bootstrap": "west:9092"}],
            "target": {"bootstrap": "east:9092"},
            "topics": {"include": [".*"]},
            "template": template("mirror"),
        },
    )
    yield "mirror", mirrors.deployment(mirror, {}, images)["spec"]["template"]
    consumers = template("c")
    consumers["spec"]["containers"][0]["image"] = "i"
    group = decoded(
        ConsumerGroup,
        {"clusterRef": {"name": "x"}, "topics": ["t"], "workload": {"template": consumers}},
    )
    yield (
        "consumers",
        workloads.deployment(group, group.spec.workload, "x:9092", 1, images)["spec"]["template"],
    )
    access = PodAccess("x:9090", has_login=True, has_tls=True)
    login = workloads.consumer_login(group, access, PodPassword("x", 4096), b"")
    logging_in = workloads.deployment(group, group.spec.workload, "x:9092", 1, images, login)
    yield "consumers with a user", logging_in["spec"]["template"]
    load = decoded(
        BatchLoad,
        {
            "clusterRef": {"name": "x"},
            "topics": ["t"],
            "value": {"format": "Binary"},
            "output": {"path": "/lake/t", "volumeClaimName": "lake"},
            "spark": {role: {"template": template(role)} for role in ("driver", "executor")},
        },
        {"lastRun": {"name": "x-0001", "state": "Pending"}},
    )
    of_job, application = job(load, images), spark_application(load, images)
    if owner:
        of_job, application = (loads.with_volume_owner(one, images) for one in (of_job, application))
    yield "job", of_job["spec"]["template"]
    yield "driver", application["spec"]["driver"]["template"]
    yield "executor", application["spec"]["executor"]["template"]
    data = loads.config_map(load, PodAccess("x:9092"), images)["data"]
    yield "job's executor", yaml.safe_load(data[loads.EXECUTOR_FILE])
    of_job = loads.with_files_of_access(job(load, images), load, access)
    yield "job with a user", of_job["spec"]["template"]
    data = loads.config_map(load, access, images)["data"]
    yield "job's executor with a user", yaml.safe_load(data[loads.EXECUTOR_FILE])


def made(namespace: Namespace, pod: Spec, *, shared_by_spark: bool) -> Spec:
    """The pod as the API server would store it. Spark itself sets the image of its pods."""
    spec = {**pod["spec"], "containers": [{"image": "i", **one} for one in pod["spec"]["containers"]]}
    if shared_by_spark:
        spec["restartPolicy"] = "Never"
    metadata = {**pod.get("metadata", {}), "name": "p", "namespace": namespace.name}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    create = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    found: Spec = json.loads(namespace.kubectl(*create, stdin=json.dumps(document).encode()))
    return found


@pytest.mark.parametrize("user_ids", UserIds)
def test_every_pod_is_a_restricted_one(restricted: Namespace, user_ids: UserIds) -> None:
    privileged = {"spec": {"containers": [{"name": "c", "securityContext": {"privileged": True}}]}}
    with pytest.raises(CommandFailed, match='violates PodSecurity "restricted:latest"'):
        made(restricted, privileged, shared_by_spark=False)
    for name, pod in pods(user_ids):
        found = made(restricted, pod, shared_by_spark="driver" in name or "executor" in name)["spec"]
        contexts = [found["securityContext"]]
        contexts += [one["securityContext"] for one in found["containers"] + found.get("initContainers", [])]
        users = {context[key] for context in contexts for key in ("runAsUser", "fsGroup") if key in context}
        assert bool(users) is (user_ids is UserIds.FIXED), name
        own_token = "serviceAccountName" in pod["spec"] or name == "driver"  # Spark's driver creates pods
        assert found.get("automountServiceAccountToken", True) is own_token, name


@pytest.mark.parametrize("user_ids", UserIds)
def test_only_what_changes_a_volumes_owner_is_more(restricted: Namespace, user_ids: UserIds) -> None:
    """docs/security.md names it as the one exception; with FsGroup there is none."""
    changing = {name: pod for name, pod in pods(user_ids, owner=True) if "volume-owner" in str(pod)}
    assert changing.keys() == {"broker", "zookeeper", "job", "driver"}
    for name, pod in changing.items():
        with pytest.raises(CommandFailed, match=r'violates PodSecurity.* \(container "volume-owner" must '):
            made(restricted, pod, shared_by_spark=name == "driver")
