"""`runner: SparkApplication`: an object for Kubeflow's Spark operator (sparkoperator.k8s.io/v1beta2), which runs it.

Source: github.com/kubeflow/spark-operator/v2, api/v1beta2. Its webhook may be absent, so the object sets everything
that it would set by default (mode, retries and both intervals, cores, memory, instances), and volumes and security go
into pod templates, which need no webhook. The object is created once and never changed, because a change of its spec
would run it again.
"""

from __future__ import annotations

from ..models import BatchLoad
from . import load as common
from .images import Images
from .load import Manifest
from .load_run_file import RUN_FILE, run_name

API_VERSION = "sparkoperator.k8s.io/v1beta2"
RETRY_INTERVAL_S = 10


def spark_application(load: BatchLoad, images: Images) -> Manifest:
    """The SparkApplication of the load's last run."""
    driver, executor = load.spec.spark.driver, load.spec.spark.executor
    executor_template = common.executor_template(load, images)
    return {
        "apiVersion": API_VERSION,
        "kind": "SparkApplication",
        "metadata": common.metadata(load, run_name(load)),
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "sparkVersion": common.SPARK_VERSION,
            "mode": "cluster",
            "image": common.image(load, images),
            "imagePullPolicy": images.pull_policy,
            "mainApplicationFile": f"local://{common.APPLICATION}",
            "arguments": [f"{common.FOLDER}/{RUN_FILE}"],
            "sparkConf": {**common.spark_conf(load), **_service_conf(images)},
            "restartPolicy": {
                "type": "OnFailure",
                "onFailureRetries": load.spec.retries,
                "onFailureRetryInterval": RETRY_INTERVAL_S,
                "onSubmissionFailureRetries": load.spec.retries,
                "onSubmissionFailureRetryInterval": RETRY_INTERVAL_S,
            },
            "driver": {
                "cores": driver.cores,
                "coreRequest": common.core_request(load, "driver"),
                **_core_limit(load, "driver"),
                "memory": driver.memory,
                "serviceAccount": common.SERVICE_ACCOUNT,
                "template": common.driver_template(load, images),
            },
            "executor": {
                "instances": executor.instances,
                "cores": executor.cores,
                "coreRequest": common.core_request(load, "executor"),
                **_core_limit(load, "executor"),
                "memory": executor.memory,
                "deleteOnTermination": True,
                "template": {key: executor_template[key] for key in ("metadata", "spec")},
            },
        },
    }


def _service_conf(images: Images) -> dict[str, str]:
    """Of the driver's Service, which Spark creates for IPv4 by default, even where Kubernetes has only IPv6."""
    return {"spark.kubernetes.driver.service.ipFamilies": "IPv6"} if images.services_are_ipv6 else {}


def _core_limit(load: BatchLoad, role: common.Role) -> Manifest:
    limit = common.core_limit(load, role)
    return {"coreLimit": limit} if limit else {}
