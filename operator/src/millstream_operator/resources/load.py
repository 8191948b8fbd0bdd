"""The Kubernetes objects of a BatchLoad's run, whatever its runner: the run's file, its volumes, the form of its pods.

A run is immutable: its ConfigMap holds `run.json` (which `millstream-load` reads, with pinned offsets) and
`executor.yaml` (the template of executor pods); it is created once and never changed.

Pods satisfy the "restricted" Pod Security Standard: Spark's own user 185, no capabilities, a read-only root;
Spark's temporary files go to emptyDirs. The output volume is mounted at the first folder of `spec.output.path`,
in the driver and in every executor, because executors write the rows. If the run logs in at brokers,
driver and executors mount the Secrets of the load's user and, with TLS, of the authorities (pod_access.py).
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import yaml

from ..models import API_VERSION, BatchLoad
from ..models.load import SparkDriver, SparkExecutor
from ..models.references import without_references
from . import pod_access
from .images import Images, SparkRole
from .load_output import credentials
from .load_run_file import RUN_FILE, run_file, run_name
from .merge import merge
from .pod_access import PodAccess
from .pods import resources_of, with_template
from .user_name import with_user_name
from .volumes import CONTAINER_SECURITY, UserIds, pod_security, with_owner

Manifest = dict[str, Any]
Role = Literal["driver", "executor"]

SPARK_VERSION = "4.1.1"
APPLICATION = "/opt/millstream/load.py"  # in the image
SERVICE_ACCOUNT = "millstream-spark"
USER = 185  # the user of Spark's images
FOLDER = "/etc/millstream"
EXECUTOR_FILE = "executor.yaml"
GROUP = "millstream-jobs"
"""The group id of jobs' consumers. They join no group, but librdkafka looks up its coordinator."""
RUN_LABEL = "millstream.dev/run"
# Spark's names for its containers, by which a pod template addresses them.
DRIVER_CONTAINER = "spark-kubernetes-driver"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
TERMINATION_LOG = "/dev/termination-log"
DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
UI_PORT = 4040
# Spark's cores are slots for tasks. Pods request a quarter of each and may use more if it is free,
# so that a load fits on a small machine beside the brokers; spark.kubernetes.{driver,executor}.request.cores overrides.
MILLICORES_A_CORE = 250
# Spark's own rule for the memory of Python jobs beside the JVM's heap (spark.kubernetes.memoryOverheadFactor).
OVERHEAD_FACTOR = 0.4
MIN_OVERHEAD_MIB = 384
# Bytes that are not an Avro record may announce gigabytes; without limits Avro reserves the memory and Spark dies.
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{kind}.maxLength={limit}"
    for kind, limit in (("bytes", 64 << 20), ("string", 64 << 20), ("collectionItems", 16 << 20))
)
# A container that a service mesh injects would not end with the driver, nor would the run.
NOT_INJECTED = {
    "labels": {"sidecar.istio.io/inject": "false"},
    "annotations": {"linkerd.io/inject": "disabled"},
}


def labels(load: BatchLoad, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "millstream-load",
        "app.kubernetes.io/instance": load.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "millstream-operator",
        "millstream.dev/cluster": load.spec.cluster_ref.name,
        "millstream.dev/batch-load": load.name,
    }


def owner(load: BatchLoad) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": load.kind,
        "name": load.name,
        "uid": load.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(load: BatchLoad, name: str, component: str = "run") -> Manifest:
    return {
        "name": name,
        "namespace": load.namespace,
        "labels": {**labels(load, component), RUN_LABEL: name},
        "ownerReferences": [owner(load)],
    }


def login_secret(load: BatchLoad) -> str:
    """The Secret of the load's own user. The chart's admission policies know its name."""
    return f"{load.name}-load-user"


def trust_secret(load: BatchLoad) -> str:
    """The Secret with a copy of the Cluster's authorities. The chart's admission policies know its name."""
    return f"{load.name}-load-trust"


def config_map(load: BatchLoad, access: PodAccess, images: Images) -> Manifest:
    executor = _with_files(executor_template(load, images), load, access)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(load, run_name(load)),
        "immutable": True,
        "data": {
            RUN_FILE: json.dumps(run_file(load, access, result=TERMINATION_LOG), indent=1),
            EXECUTOR_FILE: yaml.safe_dump(executor, sort_keys=False),
        },
    }


def service_account(namespace: str) -> Manifest:
    """The service account of driver pods. There is one per namespace, which loads share, so none of them owns it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": SERVICE_ACCOUNT, "namespace": namespace, "labels": _shared_labels()},
    }


def role_binding(namespace: str, role: SparkRole) -> Manifest:
    """The rights of those pods. A binding's role cannot change, so each role has a binding of its own name."""
    name = f"{role.name}.{role.kind.lower()}"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace, "labels": _shared_labels()},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.kind, "name": role.name},
        "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": namespace}],
    }


def _shared_labels() -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "millstream-load",
        "app.kubernetes.io/managed-by": "millstream-operator",
    }


def image(load: BatchLoad, images: Images) -> str:
    return load.spec.spark.image or images.spark


def volumes(load: BatchLoad, *, driver: bool) -> list[Manifest]:
    found: list[Manifest] = [{"name": "tmp", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    if driver:
        found.append({"name": "run", "configMap": {"name": run_name(load)}})
    if claim := load.spec.output.volume_claim_name:
        found.append({"name": "output", "persistentVolumeClaim": {"claimName": claim}})
    return found


def volume_mounts(load: BatchLoad, *, driver: bool) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "work", "mountPath": "/opt/spark/work-dir"},
    ]
    if driver:
        found.append({"name": "run", "mountPath": FOLDER, "readOnly": True})
    if load.spec.output.volume_claim_name:
        found.append({"name": "output", "mountPath": "/" + load.spec.output.path.split("/")[1]})
    return found


def with_volume_owner(runner: Manifest, images: Images) -> Manifest:
    """The runner with a driver pod that first becomes the owner of the output volume (see volumes.py)."""
    spec = runner["spec"]
    holder = spec["driver"] if runner["kind"] == "SparkApplication" else spec
    pod = with_owner(
        holder["template"]["spec"],
        volume="output",
        user=USER,
        image=images.spark,  # it runs as root, so it uses the operator's image, whatever the load's own is
        pull_policy=images.pull_policy,
    )
    template = {**holder["template"], "spec": pod}
    changed = {**holder, "template": template}
    return {**runner, "spec": changed if holder is spec else {**spec, "driver": changed}}


def with_files_of_access(runner: Manifest, load: BatchLoad, access: PodAccess) -> Manifest:
    """The runner with pods that have the files with which they connect."""
    spec = runner["spec"]
    if runner["kind"] != "SparkApplication":
        return {**runner, "spec": {**spec, "template": _with_files(spec["template"], load, access)}}
    pods = {
        role: {**spec[role], "template": _with_files(spec[role]["template"], load, access)}
        for role in ("driver", "executor")
    }
    return {**runner, "spec": {**spec, **pods}}


def _with_files(template: Manifest, load: BatchLoad, access: PodAccess) -> Manifest:
    """A pod's template whose first container, Spark's, has them."""
    if not access.has_login:
        return template
    secrets = [login_secret(load), *([trust_secret(load)] if access.has_tls else [])]
    return {**template, "spec": pod_access.with_files(template["spec"], secrets)}


def executor_template(load: BatchLoad, images: Images) -> Manifest:
    """The template of executor pods; Spark adds image, environment, ports and its own volumes to it."""
    # A claim that only one node can mount (ReadWriteOnce) requires executors on the driver's node.
    beside_the_driver = {
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": labels(load, "driver")},
        },
    }
    own = {
        "automountServiceAccountToken": False,  # an executor talks only to its driver
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [beside_the_driver]}},
    }
    return {"apiVersion": "v1", "kind": "Pod", **_template(load, EXECUTOR_CONTAINER, images, "executor", own)}


def driver_template(load: BatchLoad, images: Images) -> Manifest:
    """The template of a driver pod that Spark itself creates (cluster mode)."""
    return _template(load, DRIVER_CONTAINER, images, "driver", {})


def _template(load: BatchLoad, container: str, images: Images, role: Role, own: Manifest) -> Manifest:
    driver = role == "driver"
    resources = without_cpu(load, role)
    spec = {
        "containers": [
            {
                "name": container,
                **({"resources": resources} if resources else {}),
                **({"env": secrets} if (secrets := credentials(load)) else {}),
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": volume_mounts(load, driver=driver),
            }
        ],
        "volumes": volumes(load, driver=driver),
        **own,
    }
    pod = {
        "metadata": {"labels": {**labels(load, role), RUN_LABEL: run_name(load)}},
        "spec": as_user(load, spec, images),
    }
    return with_user_template(load, role, pod, container)


def as_user(load: BatchLoad, pod_spec: Manifest, images: Images) -> Manifest:
    """A pod's spec with this user, who then has a name."""
    pod_spec = {"securityContext": pod_security(USER, images.user_ids), **pod_spec}
    if images.user_ids is UserIds.FIXED:
        return pod_spec
    return with_user_name(
        pod_spec, image=image(load, images), pull_policy=images.pull_policy, security=CONTAINER_SECURITY
    )


def with_user_template(load: BatchLoad, role: Role, pod: Manifest, container: str) -> Manifest:
    """A driver's or an executor's pod with the user's template applied.

    A variable of the template cannot show a Secret's value: Kubernetes leaves references to such variables as they are.
    """
    pod = merge(pod, {"metadata": NOT_INJECTED})
    pod = with_template(pod, part(load, role).template, container=container, selector=labels(load, role))
    secret = {credential["name"] for credential in credentials(load)}
    for one in pod["spec"]["containers"]:
        for variable in one.get("env", ()):
            if "value" in variable:
                variable["value"] = without_references(variable["value"], secret)
    return pod


def part(load: BatchLoad, role: Role) -> SparkDriver | SparkExecutor:
    return load.spec.spark.driver if role == "driver" else load.spec.spark.executor


def core_request(load: BatchLoad, role: Role) -> str:
    """The CPU request of a pod."""
    one = part(load, role)
    default = one.resources.requests.get("cpu", f"{one.cores * MILLICORES_A_CORE}m")
    return load.spec.spark.conf.get(f"spark.kubernetes.{role}.request.cores", str(default))


def core_limit(load: BatchLoad, role: Role) -> str | None:
    """The CPU limit of a pod."""
    limit = part(load, role).resources.limits.get("cpu")
    return load.spec.spark.conf.get(
        f"spark.kubernetes.{role}.limit.cores", None if limit is None else str(limit)
    )


def without_cpu(load: BatchLoad, role: Role) -> Manifest:
    """Resources of a pod without those that Spark's configuration sets."""
    found = resources_of(part(load, role).resources)
    for amounts in found.values():
        amounts.pop("cpu", None)
    return {name: amounts for name, amounts in found.items() if amounts}


def memory_mib(memory: str) -> int:
    """Memory of a Java heap ("512m", "2g") and of Python beside it, in MiB."""
    heap = math.ceil(int(memory[:-1]) * {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}[memory[-1]])
    return heap + max(MIN_OVERHEAD_MIB, math.ceil(heap * OVERHEAD_FACTOR))


def spark_conf(load: BatchLoad) -> dict[str, str]:
    """The user's configuration over our defaults; the runners add what users may not set."""
    return {
        "spark.kubernetes.memoryOverheadFactor": str(OVERHEAD_FACTOR),
        "spark.ui.enabled": "false",
        "spark.executor.extraJavaOptions": AVRO_LIMITS,
        # A lost executor is replaced; a job that cannot continue fails instead of waiting endlessly.
        "spark.kubernetes.executor.deleteOnTermination": "true",
        # The driver needs rights on pods, and on nothing else.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        **load.spec.spark.conf,
    }
