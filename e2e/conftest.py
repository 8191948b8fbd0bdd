"""A Kubernetes with Millstream installed by helm, as in the Kubernetes tutorial.

The cluster is the one that KUBECONFIG (or the current context) names; without any, a kind cluster is
created and deleted afterwards. On a kind cluster the images are loaded from the local Docker; elsewhere
``IMAGE_BUILD`` has pushed them to the nodes' registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from millstream_harness.chart import IMAGES, SYSTEM, endangered, gone, install, remove
from millstream_harness.kube import OF_TESTS, CommandFailed, Namespace, run

KIND_CLUSTER = "millstream-e2e"
CONSENT = "E2E_DELETES_ALL"
"""Set to "true", it lets e2e delete whatever it finds of Millstream in the cluster."""


def _reachable() -> bool:
    try:
        run("kubectl", "get", "--raw=/readyz", timeout=15)
    except (CommandFailed, subprocess.TimeoutExpired):
        return False
    return True


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    for tool in ("kubectl", "helm"):
        if shutil.which(tool) is None:
            pytest.exit(f"e2e: {tool} is not on PATH: install it", returncode=2)
    created = False
    if not _reachable():
        if "KUBECONFIG" in os.environ:
            pytest.exit(
                f"e2e: the cluster of KUBECONFIG={os.environ['KUBECONFIG']} does not answer", returncode=2
            )
        if shutil.which("kind") is None:
            pytest.exit("e2e: no cluster: point KUBECONFIG at one, or install kind and Docker", returncode=2)
        os.environ["KUBECONFIG"] = str(tmp_path_factory.mktemp("kind") / "kubeconfig")
        run("kind", "create", "cluster", "--name", KIND_CLUSTER, "--wait", "120s", timeout=600)
        created = True
    context = run("kubectl", "config", "current-context").strip()
    if os.environ.get(CONSENT) != "true" and (found := endangered()):
        what = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        pytest.exit(
            f"e2e: context {context} has {what}: e2e would delete every Millstream resource and this release: set"
            f" KUBECONFIG to a cluster that you can lose, or {CONSENT}=true",
            returncode=2,
        )
    if context.startswith("kind-"):
        run("kind", "load", "docker-image", "--name", context.removeprefix("kind-"), *IMAGES, timeout=600)
    yield
    if created:
        run("kind", "delete", "cluster", "--name", KIND_CLUSTER, timeout=120)


@pytest.fixture(scope="session")
def millstream(cluster: None) -> Iterator[Namespace]:
    """The operator, installed from the chart without the default Cluster; everything left is removed at the end."""
    remove()
    install(default_cluster=False)
    yield SYSTEM
    remove()


@pytest.fixture(scope="session")
def deleted(millstream: Namespace) -> Iterator[list[str]]:
    """Namespaces whose deletion has begun: it takes most of a minute, and must not hang on a finalizer."""
    names: list[str] = []
    yield names
    for name in names:
        gone(name)


@pytest.fixture(scope="module")
def namespace(
    millstream: Namespace, deleted: list[str], request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """A namespace named after the test module."""
    name = "e2e-" + request.path.stem.removeprefix("test_").replace("_", "-")
    run("kubectl", "delete", "namespace", name, "--ignore-not-found", timeout=180)
    run("kubectl", "create", "namespace", name)
    run("kubectl", "label", "namespace", name, f"{OF_TESTS}=e2e")
    yield Namespace(name)
    run("kubectl", "delete", "namespace", name, "--wait=false")
    deleted.append(name)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """For a failing test, show the state of the cluster: resources, pods, and the operator's last lines."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.failed:
        for title, command in (
            ("resources", ["kubectl", "get", "millstream,pods,jobs,pvc", "-A"]),
            (
                "operator",
                ["kubectl", "-n", SYSTEM.name, "logs", "deployment/millstream-operator", "--tail=60"],
            ),
            ("events", ["kubectl", "get", "events", "-A", "--sort-by=.lastTimestamp"]),
        ):
            done = subprocess.run(command, capture_output=True, timeout=60)
            said = (done.stdout + done.stderr).decode(errors="replace")
            report.sections.append((title, said[-8000:]))
