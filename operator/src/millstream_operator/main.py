"""`millstream-operator`: command line to configuration to a running operator.

It watches all namespaces, or those named with --namespace, and acts while it holds the Lease of its release. --liveness
reports whether it works: it does as long as due work gets done, or while it stands by. It stops on SIGTERM; the next
operator reconciles again whatever was in progress.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import kopf
from kubernetes.config import ConfigException

from . import __version__, handlers
from .handlers.storage import NoDiffs, NoProgress
from .kubernetes.client import Kube, KubeError
from .manager.claims import Claims
from .manager.controller import Manager
from .manager.leadership import Leadership, LeaseName, own_identity
from .models import API_VERSION, KINDS
from .models.cluster import Unstated
from .reconcile.cluster.pods import StatefulSets
from .reconcile.group.workload_apply import Deployments as WorkloadDeployments
from .reconcile.load.launch import KubernetesLauncher
from .reconcile.mirror.deployment import Deployments as MirrorDeployments
from .resources.images import Images, SparkRole
from .resources.volumes import UserIds, VolumeOwnership
from .serving import logs, scrape
from .state.context import Services

logger = logging.getLogger(__name__)

# Work that has been due for this long will never be done: Kubernetes should restart the process.
STUCK_AFTER_S = 300.0
CRD_INTERVAL_S = 2.0
# The file in which a pod finds its namespace.
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def spark_role(text: str) -> SparkRole:
    """Parse KIND/NAME."""
    kind, _, name = text.partition("/")
    if kind not in ("ClusterRole", "Role") or not name:
        raise click.BadParameter(f"{text!r} is not allowed; allowed: ClusterRole/NAME or Role/NAME")
    return SparkRole(kind, name)


def lease_name(text: str) -> LeaseName:
    """Parse NAMESPACE/NAME."""
    namespace, _, name = text.partition("/")
    if not namespace or not name:
        raise click.BadParameter(f"{text!r} is not allowed; allowed: NAMESPACE/NAME")
    return LeaseName(namespace, name)


def metrics_address(text: str) -> tuple[str, int] | None:
    """Parse HOST:PORT."""
    try:
        return scrape.parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(context_settings={"auto_envvar_prefix": "MILLSTREAM", "show_default": True})
@click.option(
    "--namespace", "namespaces", multiple=True, help="Namespace to watch; repeatable (default: all)."
)
@click.option(
    "--lease",
    default="default/millstream-operator",
    callback=lambda _context, _option, value: lease_name(value),
    help="Lease of this release, as NAMESPACE/NAME: of several operators with the same Lease, one acts.",
)
@click.option("--broker-image", default=Images().broker, help="Image of the brokers and mirror workers.")
@click.option("--spark-image", default=Images().spark, help="Image of batch loads.")
@click.option(
    "--allowed-spark-image",
    "allowed_spark_images",
    multiple=True,
    help="Another image that BatchLoads may name; repeatable. IMAGE* allows all images with that prefix.",
)
@click.option(
    "--zookeeper-image",
    default=Images().zookeeper,
    help="Image of ZooKeeper, configured by the official one's variables.",
)
@click.option(
    "--image-pull-policy",
    default="IfNotPresent",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    help="For all of them.",
)
@click.option(
    "--volume-ownership",
    default="Auto",
    type=click.Choice([how.value for how in VolumeOwnership]),
    help="How volumes become writable for pods that are not root.",
)
@click.option(
    "--spark-role",
    default="/".join(SparkRole()),
    callback=lambda _context, _option, value: spark_role(value),
    help="Role of batch loads' drivers, as ClusterRole/NAME or Role/NAME.",
)
@click.option(
    "--user-ids",
    default="Fixed",
    type=click.Choice([ids.value for ids in UserIds]),
    help="User of the pods: that of the images, or the one that the platform assigns (OpenShift).",
)
@click.option(
    "--new-clusters",
    default=Unstated.OPEN.value,
    type=click.Choice([how.value for how in Unstated]),
    help="What listeners of new Clusters are that do not state it: Secure for TLS and passwords, or Open.",
)
@click.option("--liveness", default="http://:8080/healthz", help="URL of the liveness probe.")
@click.option(
    "--metrics",
    default=":8081",
    callback=lambda _context, _option, value: metrics_address(value),
    help="HOST:PORT of /metrics; empty for none.",
)
@click.option("--log-format", default="json", type=click.Choice(["json", "plain"]))
@click.option(
    "--broker-log-format",
    default=Images().broker_log_format,
    show_default=True,
    type=click.Choice(["json", "plain"]),
    help="Form of the brokers' log lines, unless a Cluster's configuration sets log.format.",
)
@click.option(
    "--mirror-log-format",
    default=Images().mirror_log_format,
    type=click.Choice(["json", "plain"]),
    help="Form of the mirror workers' log lines.",
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
@click.version_option(__version__, prog_name="millstream-operator")
def main(
    namespaces: tuple[str, ...],
    lease: LeaseName,
    broker_image: str,
    spark_image: str,
    allowed_spark_images: tuple[str, ...],
    zookeeper_image: str,
    image_pull_policy: str,
    volume_ownership: str,
    spark_role: SparkRole,
    user_ids: str,
    new_clusters: str,
    liveness: str,
    metrics: tuple[str, int] | None,
    log_format: str,
    broker_log_format: str,
    mirror_log_format: str,
    log_level: str,
) -> None:
    """Run Clusters, Topics, ConsumerGroups, MirrorMakers and BatchLoads on Kubernetes."""
    logs.configure(log_format, log_level)
    try:
        kube = Kube.connect()
        wait_for_crds(kube)
    except (ConfigException, OSError) as error:
        raise click.ClickException(
            f"no Kubernetes to work with: {error}; set KUBECONFIG or run in a pod"
        ) from None
    images = Images(
        broker=broker_image,
        spark=spark_image,
        spark_allowed=allowed_spark_images,
        zookeeper=zookeeper_image,
        pull_policy=image_pull_policy,
        user_ids=UserIds(user_ids),
        broker_log_format=broker_log_format,
        mirror_log_format=mirror_log_format,
        services_are_ipv6=":" in os.environ.get("KUBERNETES_SERVICE_HOST", ""),
    )
    services = Services(
        kube,
        broker_runtime=StatefulSets(),
        workloads=WorkloadDeployments(),
        mirrors=MirrorDeployments(),
        launcher=KubernetesLauncher(),
        images=images,
        spark_role=spark_role,
        volume_ownership=VolumeOwnership(volume_ownership),
        new_clusters=Unstated(new_clusters),
        operator_namespace=OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else None,
    )
    leadership = Leadership(kube, lease, own_identity())
    asyncio.run(operate(services, namespaces, liveness, leadership, metrics))


def wait_for_crds(kube: Kube) -> None:
    """Return once the API server serves every kind of ours."""
    said: object = None
    while True:
        try:
            missing = sorted(set(KINDS) - kube.served(API_VERSION))
        except KubeError as error:
            missing = [str(error)]
        if not missing:
            return
        if missing != said:
            logger.warning(
                "waiting for the custom resource definitions of %s: %s", API_VERSION, ", ".join(missing)
            )
            said = missing
        time.sleep(CRD_INTERVAL_S)


async def operate(
    services: Services,
    namespaces: Sequence[str],
    liveness: str | None,
    leadership: Leadership,
    metrics: tuple[str, int] | None = None,
) -> None:
    """Run until stopped. ``metrics``: host and port to serve them at."""
    claims = Claims(services.kube, str(leadership.name))
    services = replace(services, acts_in=claims.ours)
    manager = Manager(services, handlers.CONTROLLERS, namespaces, leadership, claims)
    services.metrics.show(services.store)
    services.kube.observe = services.metrics.api_request
    scraped = await scrape.serve(metrics, services.metrics, manager.measure) if metrics else None
    settings, registry = operator_settings(), kopf.OperatorRegistry()
    handlers.register(registry, settings, manager)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo | None:
        return services.kube.credentials()

    def work() -> dict[str, Any]:
        health = manager.health()
        if (health["overdueSeconds"] or 0) > STUCK_AFTER_S:
            raise scrape.Unhealthy(f"work has been waiting for {health['overdueSeconds']} s")
        if (health["longestReconcileSeconds"] or 0) > STUCK_AFTER_S:
            raise scrape.Unhealthy(f"one reconcile has taken {health['longestReconcileSeconds']} s")
        return health

    # Ours, as kopf serves its own in one address family only.
    probed = await scrape.serve_health(liveness, work) if liveness else None

    logger.info("millstream-operator %s watches %s", __version__, ", ".join(namespaces) or "all namespaces")
    services.obey(leadership.check)
    leadership.start()
    # kopf would build one from the user name, and a user assigned by the platform has none. Its type is private.
    identity: Any = own_identity()
    stop = asyncio.Event()
    work_task = asyncio.create_task(manager.run(), name="reconciles")
    work_task.add_done_callback(lambda _: stop.set())
    try:
        await kopf.operator(
            registry=registry,
            settings=settings,
            identity=identity,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )
    finally:
        ended = work_task.done()
        work_task.cancel()
        results = await asyncio.gather(work_task, return_exceptions=True)
        services.admins.close()
        services.outside.close()
        for served in filter(None, (scraped, probed)):
            await served.cleanup()
        await asyncio.to_thread(leadership.release)
    if ended and isinstance(results[0], Exception):
        raise results[0]


def operator_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    # A watch ends regularly; it is considered dead when nothing arrives, not even its end.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.networking.request_timeout = 60
    # Never give up: an API server that is down for an hour comes back.
    settings.networking.error_backoffs = Endless((1, 1, 2, 3, 5, 8, 13, 21, 30))
    # A worker keeps its slot until it has been idle for this long. With 50 slots for a kind and a second each, kopf
    # took 100 s to show 5,000 resources; handing an event over takes half a millisecond.
    settings.queueing.worker_limit = 50
    settings.queueing.idle_timeout = 0.02
    # Lists come in pages: parsed as a whole, 5,000 resources take more memory than all the rest of the operator.
    settings.watching.chunk_size = 250
    settings.queueing.exit_timeout = 2.0
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    # The CRDs exist (wait_for_crds), and the namespaces are given or all.
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = 30
    settings.persistence.finalizer = "millstream.dev/kopf"
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    return settings


class Endless:
    """Backoffs, of which the last one repeats forever; may be iterated many times."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = seconds

    def __iter__(self) -> itertools.chain[float]:
        return itertools.chain(self._seconds, itertools.repeat(self._seconds[-1]))


if __name__ == "__main__":
    main()
