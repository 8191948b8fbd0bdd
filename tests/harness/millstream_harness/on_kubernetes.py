"""What the operator runs on Kubernetes, as its `main` puts it together."""

from __future__ import annotations

from typing import Any

from millstream_operator.kubernetes.client import Kube
from millstream_operator.reconcile.cluster.pods import StatefulSets
from millstream_operator.reconcile.group.workload_apply import Deployments as WorkloadDeployments
from millstream_operator.reconcile.load.launch import KubernetesLauncher
from millstream_operator.reconcile.mirror.deployment import Deployments as MirrorDeployments
from millstream_operator.state.context import Services


def services_on_kubernetes(kube: Kube, **settings: Any) -> Services:
    return Services(
        kube,
        broker_runtime=StatefulSets(),
        workloads=WorkloadDeployments(),
        mirrors=MirrorDeployments(),
        launcher=KubernetesLauncher(),
        **settings,
    )
