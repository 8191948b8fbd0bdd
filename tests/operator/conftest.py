"""A real API server for the operator's tests, named by KUBECONFIG; and the local runtime in a folder.

Without an API server its tests are skipped (in CI: fail). The deletion of the tests' namespaces must finish: a
namespace that hangs on a finalizer fails the run.

A test has namespaces of its own (`namespace`, `new_namespace`) and starts operators (`start_operator`), or its module
shares an operator, which costs less. Such a module overrides two fixtures:

    @pytest.fixture
    def namespace(watched_namespace: Namespace) -> Namespace:
        return watched_namespace

    @pytest.fixture
    def operator(shared_operator: OperatorProcess) -> OperatorProcess:
        return shared_operator

The operator then watches a namespace for each test. A test may kill it and start it again; the next one finds it
running, without resources of earlier tests.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import OF_TESTS, CommandFailed, Namespace, run, until
from millstream_harness.local import Sandbox
from millstream_harness.operator import OperatorProcess
from millstream_harness.tools import missing, require
from millstream_operator.local.runtime import LocalRuntime

ROOT = Path(__file__).resolve().parents[2]
DELETION_TIMEOUT_S = 300.0
SPARE = 1
"""Namespaces of a module beyond one for each test: a test may take two."""

NewNamespace = Callable[[], Namespace]
StartOperator = Callable[..., OperatorProcess]


def create_namespaces(count: int = 1) -> list[Namespace]:
    """New namespaces, labelled with this process, because several may run tests at once."""
    first = f"test-{os.getpid()}-{time.monotonic_ns()}"
    names = [first, *(f"{first}-{number}" for number in range(2, count + 1))]
    labels = {OF_TESTS: str(os.getpid())}
    items = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name in names
    ]
    manifest = {"apiVersion": "v1", "kind": "List", "items": items}
    run("kubectl", "apply", "-f", "-", stdin=json.dumps(manifest).encode())
    return [Namespace(name) for name in names]


def drop_namespaces(names: Iterable[str]) -> None:
    """Delete them, without waiting: the end of the session waits."""
    if names := [*names]:
        run("kubectl", "delete", "namespace", *names, "--wait=false", "--ignore-not-found")


def end_operator(operator: OperatorProcess) -> None:
    """Kill it, and delete its Lease."""
    operator.kill()
    namespace, _, lease = operator.lease.partition("/")
    run("kubectl", "--namespace", namespace, "delete", "lease", lease, "--ignore-not-found")


@pytest.fixture(scope="session")
def api_server() -> Iterator[None]:
    """The API server, with our definitions applied as a user applies them."""
    require("kubectl")
    if "KUBECONFIG" not in os.environ:
        missing("kubectl")
    try:
        run("kubectl", "get", "--raw=/readyz", timeout=60)
    except (CommandFailed, subprocess.TimeoutExpired):
        missing("kubectl")
    run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    run("kubectl", "wait", "--for=condition=Established", "--timeout=120s", "-f", str(ROOT / "crds"))
    yield
    until(
        "the tests' namespaces gone",
        lambda: not run("kubectl", "get", "namespaces", "-l", f"{OF_TESTS}={os.getpid()}", "-o", "name"),
        DELETION_TIMEOUT_S,
        every=2,
    )


@contextlib.contextmanager
def making_namespaces() -> Iterator[NewNamespace]:
    made: list[str] = []

    def make() -> Namespace:
        (namespace,) = create_namespaces()
        made.append(namespace.name)
        return namespace

    yield make
    drop_namespaces(made)


@pytest.fixture
def new_namespace(api_server: None) -> Iterator[NewNamespace]:
    with making_namespaces() as make:
        yield make


@pytest.fixture(scope="module")
def new_module_namespace(api_server: None) -> Iterator[NewNamespace]:
    """Namespaces that last as long as the module."""
    with making_namespaces() as make:
        yield make


@pytest.fixture(scope="module")
def module_namespace(new_module_namespace: NewNamespace) -> Namespace:
    """A namespace for all tests of the module: each uses names of its own, or stores nothing."""
    return new_module_namespace()


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
            run(*kubectl, "delete", "clusters.millstream.dev", "--all", timeout=DELETION_TIMEOUT_S)
            run("kubectl", "delete", "namespace", name, "--wait=false", "--ignore-not-found")
            held = (*kubectl, "get", "topics,consumergroups", "-o=jsonpath={.items[*].metadata.finalizers}")
            until(f"nothing held in {name}", lambda held=held: not run(*held), DELETION_TIMEOUT_S)  # type: ignore[misc]
    for operator in started:
        end_operator(operator)


@pytest.fixture(scope="module")
def module_namespaces(api_server: None, request: pytest.FixtureRequest) -> Iterator[list[Namespace]]:
    """One for each test of the module that has a namespace, and ``SPARE``, for the operator that they share."""
    tests = [
        one for one in request.session.items if one.path == request.path and isinstance(one, pytest.Function)
    ]
    made = create_namespaces(SPARE + sum("namespace" in one.fixturenames for one in tests))
    yield [*made]
    drop_namespaces(one.name for one in made)


@pytest.fixture(scope="module")
def cluster_addresses() -> dict[str, str]:
    """HOST:PORT of the broker of each Cluster that a test of the module may create, by the Cluster's name.

    Modules with brokers override it.
    """
    return {}


@pytest.fixture(scope="module")
def interval_s() -> float | None:
    """Modules that test events override it: see `OperatorProcess`."""
    return None


@pytest.fixture(scope="module")
def _shared_operator(
    module_namespaces: list[Namespace],
    cluster_addresses: dict[str, str],
    interval_s: float | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    names, folder = [one.name for one in module_namespaces], tmp_path_factory.mktemp("operator")
    operator = OperatorProcess(folder, names, cluster_addresses, interval_s=interval_s)
    yield operator
    end_operator(operator)


@pytest.fixture
def shared_operator(_shared_operator: OperatorProcess) -> OperatorProcess:
    """The operator that the module's tests share; it runs and watches ``watched_namespace``."""
    if not _shared_operator.runs:
        _shared_operator.start()
    return _shared_operator


@pytest.fixture
def new_watched_namespace(
    shared_operator: OperatorProcess, module_namespaces: list[Namespace]
) -> Iterator[NewNamespace]:
    taken: list[Namespace] = []

    def take() -> Namespace:
        taken.append(module_namespaces.pop())
        return taken[-1]

    yield take
    if not shared_operator.runs:
        shared_operator.start()  # its finalizers are on the resources
    for namespace in taken:
        namespace.kubectl("delete", "millstream", "--all", timeout=DELETION_TIMEOUT_S)
    until(
        "the operator has forgotten the test's resources",
        lambda: shared_operator.health()["work"]["resources"] == 0,
        DELETION_TIMEOUT_S,
        every=0.05,
        passing=(OSError,),
    )


@pytest.fixture
def watched_namespace(new_watched_namespace: NewNamespace) -> Namespace:
    """A namespace of the test that the operator of its module watches."""
    return new_watched_namespace()


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    """A broker for all tests of the module; ``empty_broker`` is for one test."""
    with InProcessBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def empty_broker(module_broker: InProcessBroker) -> Iterator[InProcessBroker]:
    """The module's broker, which has no topics and groups of earlier tests."""
    yield module_broker
    empty(module_broker.bootstrap)


def empty(bootstrap: str) -> None:
    """Delete all groups and all topics but the internal ones."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    listed = client.list_consumer_groups(request_timeout=60).result(60)
    topics = [name for name in client.list_topics(timeout=60).topics if not name.startswith("__")]
    done: dict[str, Future[None]] = {}
    if groups := [one.group_id for one in listed.valid]:
        done |= client.delete_consumer_groups(groups, request_timeout=60)
    if topics:
        done |= client.delete_topics(topics, request_timeout=60)
    for one in done.values():
        one.result(60)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path)
    yield found
    LocalRuntime(found.data).down()
