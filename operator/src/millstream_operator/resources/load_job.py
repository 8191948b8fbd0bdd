"""`runner: Job`: a Kubernetes Job whose pod runs spark-submit in client mode, so the pod is the driver.

Source: Spark's documentation "Running Spark on Kubernetes", client mode: executors reach the driver at
`spark.driver.host` (the pod's address), and with `spark.kubernetes.driver.pod.name` they belong to the driver's pod, so
that Kubernetes removes them with it. No component beyond Kubernetes itself is needed.
"""

from __future__ import annotations

from ..models import BatchLoad
from . import load as common
from .images import Images
from .load import Manifest
from .load_output import credentials
from .load_run_file import RUN_FILE, run_name
from .volumes import CONTAINER_SECURITY

CANNOT_RUN = 2  # millstream-load's exit status if no retry can help
DRIVER = "driver"


def job(load: BatchLoad, images: Images) -> Manifest:
    """The Job of the load's last run."""
    name = run_name(load)
    labels = {**common.labels(load, "driver"), common.RUN_LABEL: name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": common.metadata(load, name),
        "spec": {
            "backoffLimit": load.spec.retries,
            "activeDeadlineSeconds": load.spec.timeout_seconds,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": DRIVER, "operator": "In", "values": [CANNOT_RUN]},
                    },
                    # A node that is drained or lost is nobody's fault: it does not count as an attempt.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": common.with_user_template(
                load, "driver", {"metadata": {"labels": labels}, "spec": _pod(load, images, name)}, DRIVER
            ),
        },
    }


def _pod(load: BatchLoad, images: Images, name: str) -> Manifest:
    memory = f"{common.memory_mib(load.spec.spark.driver.memory)}Mi"
    cpu_limit = common.core_limit(load, "driver")
    others = common.without_cpu(load, "driver")
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": common.SERVICE_ACCOUNT,
        "containers": [
            {
                "name": DRIVER,
                "image": common.image(load, images),
                "imagePullPolicy": images.pull_policy,
                "command": ["/opt/spark/bin/spark-submit"],
                "args": [
                    *_arguments(load, images, name),
                    common.APPLICATION,
                    f"{common.FOLDER}/{RUN_FILE}",
                ],
                "env": [
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    *credentials(load),
                ],
                "ports": _ports(load),
                "resources": {
                    "requests": {
                        **others.get("requests", {}),
                        "cpu": common.core_request(load, "driver"),
                        "memory": memory,
                    },
                    "limits": {
                        **others.get("limits", {}),
                        **({"cpu": cpu_limit} if cpu_limit else {}),
                        "memory": memory,
                    },
                },
                "securityContext": CONTAINER_SECURITY,
                "terminationMessagePath": common.TERMINATION_LOG,
                # For a driver that dies before it can report: the end of its log.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": common.volume_mounts(load, driver=True),
            }
        ],
        "volumes": common.volumes(load, driver=True),
    }
    return common.as_user(load, pod, images)


def _ports(load: BatchLoad) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": "driver", "containerPort": common.DRIVER_PORT},
        {"name": "blockmanager", "containerPort": common.BLOCK_MANAGER_PORT},
    ]
    if common.spark_conf(load)["spark.ui.enabled"] == "true":
        found.append({"name": "spark-ui", "containerPort": common.UI_PORT})
    return found


def _arguments(load: BatchLoad, images: Images, name: str) -> list[str]:
    executor = load.spec.spark.executor
    conf = {
        **common.spark_conf(load),
        "spark.submit.deployMode": "client",
        "spark.app.name": name,
        "spark.driver.memory": load.spec.spark.driver.memory,
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.driver.port": str(common.DRIVER_PORT),
        "spark.driver.blockManager.port": str(common.BLOCK_MANAGER_PORT),
        "spark.executor.instances": str(executor.instances),
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": executor.memory,
        "spark.kubernetes.namespace": load.namespace,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.container.image": common.image(load, images),
        "spark.kubernetes.container.image.pullPolicy": images.pull_policy,
        "spark.kubernetes.executor.podNamePrefix": name,
        "spark.kubernetes.executor.request.cores": common.core_request(load, "executor"),
        "spark.kubernetes.executor.podTemplateFile": f"{common.FOLDER}/{common.EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": common.EXECUTOR_CONTAINER,
    }
    if limit := common.core_limit(load, "executor"):
        conf["spark.kubernetes.executor.limit.cores"] = limit
    arguments = ["--master", "k8s://https://kubernetes.default.svc"]
    for key, value in sorted(conf.items()):
        arguments += ["--conf", f"{key}={value}"]
    return arguments
