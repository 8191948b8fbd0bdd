"""A real API server for the operator's tests, named by KUBECONFIG; and the local runtime in a folder.

Without an API server its tests are skipped (in CI: fail). Each test has its own namespaces, whose deletion must finish:
a namespace that hangs on a finalizer fails the run.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from millstream_harness.kube import OF_TESTS, CommandFailed, Namespace, run, until
from millstream_harness.local import Sandbox
from millstream_harness.operator import OperatorProcess
from millstream_harness.tools import missing, require
from millstream_operator.local.runtime import LocalRuntime

ROOT = Path(__file__).resolve().parents[2]
DELETION_TIMEOUT_S = 90.0
"""The label of the tests' namespaces; its value is the process that created them, because several may run at once."""

NewNamespace = Callable[[], Namespace]
StartOperator = Callable[..., OperatorProcess]


@pytest.fixture(scope="session")
def api_server() -> Iterator[None]:
    """The API server, with our definitions applied as a user applies them."""
    require("kubectl")
    if "KUBECONFIG" not in os.environ:
        missing("kubectl")
    try:
        run("kubectl", "get", "--raw=/readyz", timeout=15)
    except (CommandFailed, subprocess.TimeoutExpired):
        missing("kubectl")
    run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    run("kubectl", "wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))
    yield
    until(
        "the tests' namespaces gone",
        lambda: not run("kubectl", "get", "namespaces", "-l", f"{OF_TESTS}={os.getpid()}", "-o", "name"),
        DELETION_TIMEOUT_S,
    )


@pytest.fixture
def new_namespace(api_server: None) -> Iterator[NewNamespace]:
    made: list[str] = []

    def make() -> Namespace:
        name = f"test-{os.getpid()}-{time.monotonic_ns()}"
        manifest = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {OF_TESTS: str(os.getpid())}},
        }
        namespace = Namespace(name)
        namespace.apply(manifest)
        made.append(name)
        return namespace

    yield make
    for name in made:
        run("kubectl", "delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def namespace(new_namespace: NewNamespace) -> Namespace:
    return new_namespace()


@pytest.fixture
def start_operator(tmp_path: Path, namespace: Namespace) -> Iterator[StartOperator]:
    """``start_operator({CLUSTER: HOST:PORT})``: watch the test's namespace, or the given ones."""
    started: list[OperatorProcess] = []
    numbers = itertools.count(1)

    def start(
        addresses: dict[str, str],
        namespaces: Sequence[Namespace] = (),
        release: str = "",
        kubeconfig: Path | None = None,
    ) -> OperatorProcess:
        folder = tmp_path / f"operator-{next(numbers)}"
        folder.mkdir()
        names = [one.name for one in namespaces or (namespace,)]
        operator = OperatorProcess(folder, names, addresses, release, kubeconfig=kubeconfig)
        started.append(operator)
        return operator.start()

    yield start
    # The operator runs until its finalizers are off its resources; without Clusters it removes them at once.
    for operator in started:
        for name in operator.namespaces:
            kubectl = ("kubectl", "--namespace", name)
            run(
                *kubectl, "delete", "clusters.millstream.dev", "--all", f"--timeout={DELETION_TIMEOUT_S:.0f}s"
            )
            run("kubectl", "delete", "namespace", name, "--wait=false", "--ignore-not-found")
            held = (*kubectl, "get", "topics,consumergroups", "-o=jsonpath={.items[*].metadata.finalizers}")
            until(f"nothing held in {name}", lambda held=held: not run(*held), DELETION_TIMEOUT_S)  # type: ignore[misc]
    for operator in started:
        operator.kill()
        namespace_of_lease, _, lease = operator.lease.partition("/")
        run("kubectl", "--namespace", namespace_of_lease, "delete", "lease", lease, "--ignore-not-found")


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path)
    yield found
    LocalRuntime(found.data).down()
