"""The chart and the images of this checkout, installed and removed as the tutorial for Kubernetes does."""

from __future__ import annotations

import json
from pathlib import Path

from .kube import OF_TESTS, Json, Namespace, run, until

ROOT = Path(__file__).resolve().parents[3]
VERSION = next(
    line.split('"')[1]
    for line in (ROOT / "broker-image/pyproject.toml").read_text().splitlines()
    if line.startswith("version = ")
)
CLIENT = f"millstream/client:{VERSION}"
BROKER = f"millstream/broker:{VERSION}"
CHART = ROOT / "charts/millstream"
SYSTEM = Namespace("millstream-system")
KINDS = ("batchloads", "mirrormakers", "consumergroups", "topics", "users", "clusters")


def install(
    *, default_cluster: bool, chart: Path = CHART, namespace: Namespace = SYSTEM, settings: str = ""
) -> None:
    """``helm upgrade --install``, waiting until the operator is available. ``settings``: more values of the chart."""
    setting = ",".join(filter(None, (f"cluster.enabled={str(default_cluster).lower()}", settings)))
    release = ["millstream", str(chart), "--namespace", namespace.name, "--create-namespace"]
    run("helm", "upgrade", "--install", *release, "--set", setting, "--wait", "--timeout", "3m", timeout=240)


def crds_are_there() -> bool:
    return "topics.millstream.dev" in run(
        "kubectl", "api-resources", "--api-group=millstream.dev", "-o", "name"
    )


def endangered() -> list[str]:
    """What `remove` would delete of others: resources outside the tests' own namespaces, and a release of the chart."""
    found = []
    if crds_are_there():
        kinds = ",".join(f"{kind}.millstream.dev" for kind in KINDS)
        spared = {one["metadata"]["name"] for one in SYSTEM.list("namespace", "-l", OF_TESTS)}
        items = json.loads(run("kubectl", "get", kinds, "--all-namespaces", "-o", "json"))["items"]
        found = [
            f"{one['kind']} {one['metadata']['namespace']}/{one['metadata']['name']}"
            for one in items
            if one["metadata"]["namespace"] not in spared
        ]
    if "millstream" in run("helm", "list", "--namespace", SYSTEM.name, "--short").split():
        found.append(f"release millstream in namespace {SYSTEM.name}")
    return found


def remove() -> None:
    """Delete every resource while the operator runs, then the release and its namespace."""
    if crds_are_there():
        for kind in KINDS:
            run("kubectl", "delete", f"{kind}.millstream.dev", "--all", "--all-namespaces", timeout=180)
    if "millstream" in run("helm", "list", "--namespace", SYSTEM.name, "--short"):
        run("helm", "uninstall", "millstream", "--namespace", SYSTEM.name, "--wait", timeout=180)
    run("kubectl", "delete", "namespace", SYSTEM.name, "--ignore-not-found", timeout=180)


def reconciles() -> int:
    """Number of reconciles so far, from the operator's liveness endpoint (through the API server's proxy).

    Waits for an operator that responds: a test may have killed it.
    """

    def health() -> Json | None:
        for pod in SYSTEM.list("pod", "-l", "app.kubernetes.io/component=operator"):
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
                path = f"/api/v1/namespaces/{SYSTEM.name}/pods/{pod['metadata']['name']}:8080/proxy/healthz"
                found: Json = json.loads(run("kubectl", "get", "--raw", path))
                return found
        return None

    return int(until("an operator responds", health)["work"]["reconciles"])


def gone(namespace: str, timeout: float = 180.0) -> None:
    until(
        f"namespace {namespace} gone",
        lambda: not run("kubectl", "get", "namespace", namespace, "--ignore-not-found"),
        timeout,
    )
