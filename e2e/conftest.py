"""A Kubernetes with Millstream installed by helm, as in the Kubernetes tutorial.

The cluster is the one that KUBECONFIG (or the current context) names; without any, a kind cluster is created and
deleted afterwards. On a kind cluster, the tutorial's block loads the images from the local Docker; elsewhere
``IMAGE_BUILD`` has pushed them to the nodes' registry.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from millstream_harness.chart import SYSTEM, endangered, gone, install, remove
from millstream_harness.kube import OF_TESTS, CommandFailed, Namespace, run
from millstream_harness.kubernetes_pages import TUTORIAL
from millstream_harness.pages import blocks

pytest_plugins = ["millstream_harness.tier_plugin"]

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
        (load,) = (one.text for one in blocks(TUTORIAL.page.read_text()) if one.title == "kind")
        name = f"KIND_CLUSTER_NAME={context.removeprefix('kind-')}"
        run("env", name, "sh", "-ec", load, timeout=600)
    yield
    if created:
        run("kind", "delete", "cluster", "--name", KIND_CLUSTER, timeout=120)


@pytest.fixture(scope="session")
def deleted() -> list[str]:
    """Namespaces whose deletion has begun: it takes most of a minute, beside the tests that follow."""
    return []


@pytest.fixture(scope="session")
def millstream(cluster: None, deleted: list[str]) -> Iterator[Namespace]:
    """The operator, installed from the chart without the default Cluster.

    Everything left is removed at the end. Meanwhile the last namespaces go; neither may hang on a finalizer.
    """
    remove()
    install(default_cluster=False)
    yield SYSTEM
    remove()
    for name in deleted:
        gone(name)


@pytest.fixture(scope="module")
def namespace(
    millstream: Namespace, deleted: list[str], request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """A namespace named after the test module."""
    name = "e2e-" + request.path.stem.removeprefix("test_").replace("_", "-")
    with fresh(Namespace(name), deleted) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def elsewhere(millstream: Namespace, deleted: list[str]) -> Iterator[Namespace]:
    """A namespace for another release."""
    with fresh(Namespace("e2e-elsewhere"), deleted) as namespace:
        yield namespace


@contextlib.contextmanager
def fresh(namespace: Namespace, deleted: list[str]) -> Iterator[Namespace]:
    """A new namespace of e2e; its deletion begins afterwards, unless a test has begun it."""
    run("kubectl", "delete", "namespace", namespace.name, "--ignore-not-found", timeout=180)
    run("kubectl", "create", "namespace", namespace.name)
    run("kubectl", "label", "namespace", namespace.name, f"{OF_TESTS}=e2e")
    yield namespace
    run("kubectl", "delete", "namespace", namespace.name, "--ignore-not-found", "--wait=false")
    deleted.append(namespace.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tutorial is first, because it installs the chart where there is none."""
    items.sort(key=lambda item: item.path.stem != "test_tutorial")


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
