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
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import yaml

from ..models import API_VERSION, BatchLoad
from ..models.load import SparkDriver, SparkExecutor, Written
from ..models.quantity import parse_quantity
from ..models.references import without_references
from . import pod_access
from .images import Images, SparkRole
from .load_value import reading, value
from .merge import merge
from .pod_access import PodAccess
from .pods import resources_of, with_template
from .user_name import with_user_name
from .volumes import UserIds, pod_security, with_owner

Manifest = dict[str, Any]
# Keys of Secrets. The chart's admission policies let pods have these from Secrets, and no others.
S3_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
CATALOG_CREDENTIALS = ("CATALOG_USER", "CATALOG_PASSWORD", "CATALOG_CREDENTIAL", "CATALOG_TOKEN")
REQUIRED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
Role = Literal["driver", "executor"]

SPARK_VERSION = "4.1.1"
APPLICATION = "/opt/millstream/load.py"  # in the image
SERVICE_ACCOUNT = "millstream-spark"
USER = 185  # the user of Spark's images
FOLDER = "/etc/millstream"
RUN_FILE = "run.json"
EXECUTOR_FILE = "executor.yaml"
GROUP = "millstream-jobs"
"""The group id of jobs' consumers. They join no group, but librdkafka looks up its coordinator."""
LOGIN, TLS = "login", "tls"
"""Keys of RUN.json."""
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


def run_name(load: BatchLoad) -> str:
    run = load.status.last_run
    if run is None or not run.name:
        raise ValueError(f"BatchLoad {load.name} has no run")
    return run.name


def run_id(load: BatchLoad) -> str:
    """The id of the run's rows and its result: the names of older releases' runs have no uid."""
    name, uid, run = run_name(load), load.metadata.uid[:8], load.status.last_run
    if run is not None and run.id:
        return run.id
    return name if name.endswith(f"-{uid}") else f"{name}-{uid}"


def login_secret(load: BatchLoad) -> str:
    """The Secret of the load's own user. The chart's admission policies know its name."""
    return f"{load.name}-load-user"


def trust_secret(load: BatchLoad) -> str:
    """The Secret with a copy of the Cluster's authorities. The chart's admission policies know its name."""
    return f"{load.name}-load-trust"


def run_file(load: BatchLoad, access: PodAccess, *, result: str, output_path: str | None = None) -> Manifest:
    """RUN.json: everything that the job needs to know."""
    output = load.spec.output
    topic_ids = {part.topic: part.topic_id for part in load.status.offsets or () if part.topic_id}
    return {
        "name": run_id(load),
        "bootstrap": access.bootstrap,
        "offsets": [
            {"topic": part.topic, "partition": part.partition, "from": part.from_, "until": part.until}
            for part in load.status.offsets or ()
        ],
        **({"topicIds": topic_ids} if topic_ids else {}),
        "fence": _fence(load),
        "value": value(load),
        **reading(load),
        "output": output_of(load, output_path or output.path),
        "result": result,
        **({LOGIN: {"folder": pod_access.FOLDER}} if access.has_login else {}),
        **({TLS: {"caFile": pod_access.CA_FILE}} if access.has_tls else {}),
    }


def logs_in(config_map: Mapping[str, Any], *, has_tls: bool = False) -> bool:
    """Whether the run of a ConfigMap logs in at brokers, with TLS or without."""
    found = json.loads(config_map["data"][RUN_FILE])
    return LOGIN in found and (TLS in found) is has_tls


def output_of(load: BatchLoad, path: str) -> Manifest:
    """RUN.json's output, without unset fields."""
    output = load.spec.output
    told: Manifest = {
        "format": output.format,
        "path": path,
        "partitionBy": list(output.partition_by),
        "owner": f"{load.namespace}/{load.name}",
    }
    if _begins_a_table(load):
        told["mode"] = "New"
    if output.target_file_size is not None:
        told["targetFileSize"] = int(parse_quantity(output.target_file_size))
    if output.table is not None:
        told["table"] = output.table
    for name, part in (("s3", output.s3), ("catalog", output.catalog)):
        if part is not None:
            given = msgspec.to_builtins(part)
            told[name] = {
                key: value for key, value in given.items() if value is not None and key != "credentialsSecret"
            }
    return told


def _begins_a_table(load: BatchLoad) -> bool:
    """Whether the run must find none of its records in the table: it is the load's first there, or follows a failed
    run that may have published its rows.

    Its status decides: a load that was deleted and created again does not know its predecessor's rows.
    """
    status, run = load.status, load.status.last_run
    decided = load.spec.from_.request_id is not None
    if run is None:
        return False
    if run.trigger == "Rerun":
        return status.committed is None and not decided
    if status.asked is None:
        return False
    if status.committed is None or status.committed.path != status.asked.path:
        return not decided
    if status.committed.from_ != status.asked.from_:  # who edits `from` may load records twice
        return follows_unsettled(load) and not decided
    return follows_unsettled(load) or (_written(load) is None and not decided)


def _fence(load: BatchLoad) -> Manifest:
    """RUN.json's fence: the run must follow the last run of its table, if it goes on from there."""
    request, written = _request(load), _written(load)
    begins = {"request": request} if request else {}
    if written is None:
        return begins
    failed = [run for run in written.since if run != run_id(load)]
    return {"after": written.run, **({"failed": failed} if failed else {}), **begins}


def _request(load: BatchLoad) -> str:
    """The request with which the run begins, "" if it continues one: the table may have its rows already, although the
    status, which may be older, does not know it.
    """
    status, run = load.status, load.status.last_run
    if run is not None and run.trigger == "Rerun":
        return f"rerun {run.request_id}"
    committed, asked, request_id = status.committed, status.asked, load.spec.from_.request_id
    if request_id is None or asked is None:
        return ""
    is_known = committed is not None and (committed.path, committed.from_) == (asked.path, asked.from_)
    return "" if is_known else f"from {request_id}"


def _written(load: BatchLoad) -> Written | None:
    """The runs that the table must end with; None if this run may find any."""
    committed, asked, written, run = (
        load.status.committed,
        load.status.asked,
        load.status.written,
        load.status.last_run,
    )
    if committed is None or written is None or written.run is None or written.path != committed.path:
        return None
    if run is not None and run.trigger == "Rerun":
        return written
    if asked is None or asked.path != committed.path:
        return None
    removed = (
        load.spec.from_.position == "Committed" and load.spec.from_.request_id is None
    )  # decides nothing
    return written if removed or asked.from_ == committed.from_ else None


def follows_unsettled(load: BatchLoad) -> bool:
    """Whether the last run left out a failed run of the same table, as `topics` or `until` were edited since."""
    last, asked = load.status.unsettled, load.status.asked
    return last is not None and asked is not None and last.path == asked.path and last.id != run_id(load)


def credentials(load: BatchLoad) -> list[Manifest]:
    """Environment of driver and executors: keys of the Secrets that the output names, under their own names."""
    output = load.spec.output
    secrets = [
        (output.s3.credentials_secret if output.s3 else None, S3_CREDENTIALS),
        (output.catalog.credentials_secret if output.catalog else None, CATALOG_CREDENTIALS),
    ]
    return [
        {
            "name": key,
            "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": key not in REQUIRED}},
        }
        for secret, keys in secrets
        if secret is not None
        for key in keys
    ]


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


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


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
                "securityContext": container_security(),
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
        pod_spec, image=image(load, images), pull_policy=images.pull_policy, security=container_security()
    )


def with_user_template(load: BatchLoad, role: Role, pod: Manifest, container: str) -> Manifest:
    """A driver's or an executor's pod with the user's template applied.

    A variable of the template cannot show a Secret's value: Kubernetes leaves references to such variables as they are.
    """
    pod = merge(pod, {"metadata": NOT_INJECTED})
    pod = with_template(pod, part(load, role).template, container=container, selector=labels(load, role))
    secret = {one["name"] for one in credentials(load)}
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
