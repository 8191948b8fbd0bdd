"""A producer's view of operations on a Cluster, and of killed brokers: rolls, scaling, everything at once.

It runs in a pod, with librdkafka's defaults (paced_producer.py), so it finds the brokers like every client in
Kubernetes. Each step measures the longest time between two acknowledgements of a partition. docs/reliability.md has
measured figures; the bounds here hold on a busy machine. With ROLLS=5 every roll and deletion
happens five times; `-s` shows the figures.
"""

from __future__ import annotations

import calendar
import os
import time
from pathlib import Path

import pytest

from millstream_harness.chart import ROOT
from millstream_harness.kube import Json, Namespace, until
from millstream_harness.kubernetes_pages import END_OF_CHANGE, RESTART
from millstream_harness.pages import run_command
from millstream_harness.rolls import (
    ALL,
    CLUSTER,
    KILLED_BOUND_S,
    KIND,
    ZOOKEEPER,
    Paced,
    ids,
    kill_broker,
    measured,
    names_on_pages,
    nothing_is_lost,
    pods,
    renewed,
    restarts,
    settled,
    under_load,
    until_in_sync,
)

RUNBOOKS = ROOT / "docs/runbooks.md"
BACK_BOUND_S = 45.0
"""Time after the last pod of brokers and ZooKeeper is ready.

librdkafka waits 30 s for a connection that it began just as a pod stopped (docs/reliability.md says why nobody refuses
it), and then up to 10 s before it retries.
"""
ROLLS = int(os.environ.get("ROLLS", "1"))


@pytest.fixture(scope="module")
def paced(namespace: Namespace) -> Paced:
    return under_load(namespace)


def test_each_broker_has_an_address_for_clients_that_stays_and_one_for_brokers_that_is_its_own(
    namespace: Namespace, paced: Paced
) -> None:
    for name, pod in pods(namespace).items():
        service = namespace.get("service", f"{CLUSTER}-broker{name[-1]}")
        assert service["spec"]["clusterIP"] not in ("", "None")
        said = namespace.kubectl("logs", name)
        assert f"REPLICATION-9091://{pod['status']['podIP']}:9091" in said
        assert f"INTERNAL://{CLUSTER}-broker{name[-1]}.{namespace.name}.svc:9092" in said


@pytest.mark.parametrize("number", range(ROLLS))
def test_a_changed_configuration(namespace: Namespace, paced: Paced, number: int, tmp_path: Path) -> None:
    """The script of docs/operations.md waits for its end."""
    before, since = ids(pods(namespace)), time.time()
    namespace.patch(KIND, CLUSTER, {"spec": {"config": {"log.retention.hours": str(24 + number)}}})
    END_OF_CHANGE.run(tmp_path, replace=names_on_pages(namespace))
    assert renewed(namespace, before, 3)(), "the script waits for the last new pod"
    assert settled(namespace)
    measured(paced, f"roll {number + 1}", since)


def test_a_restart_on_request(namespace: Namespace, paced: Paced, tmp_path: Path) -> None:
    """As docs/operations.md says."""
    before, since = ids(pods(namespace)), time.time()
    RESTART.run(tmp_path, replace=names_on_pages(namespace))
    until("three new pods", renewed(namespace, before, 3), timeout=300)
    until("the restart over", lambda: settled(namespace), timeout=120)
    measured(paced, "a restart on request", since)


def test_a_fourth_broker_comes_and_goes(namespace: Namespace, paced: Paced) -> None:
    since = time.time()
    namespace.patch(KIND, CLUSTER, {"spec": {"brokers": {"replicas": 4}}})
    until("four brokers", lambda: len(pods(namespace)) == 4 and settled(namespace), timeout=240)
    measured(paced, "a broker more", since)
    assert namespace.get("service", f"{CLUSTER}-broker3")
    since = time.time()
    namespace.patch(KIND, CLUSTER, {"spec": {"brokers": {"replicas": 3}}})
    until("three brokers", lambda: len(pods(namespace)) == 3 and settled(namespace), timeout=240)
    measured(paced, "a broker fewer", since)
    assert not namespace.kubectl("get", "service", f"{CLUSTER}-broker3", "--ignore-not-found")


def test_the_zookeeper_servers(namespace: Namespace, paced: Paced) -> None:
    before, since = ids(pods(namespace, ZOOKEEPER)), time.time()
    namespace.kubectl("rollout", "restart", f"statefulset/{CLUSTER}-zookeeper")
    until("three new servers", renewed(namespace, before, 3, ZOOKEEPER), timeout=300)
    measured(paced, "ZooKeeper's servers", since)


def test_a_broker_whose_process_is_killed(namespace: Namespace, paced: Paced, tmp_path: Path) -> None:
    """Its log is still there, by the command of docs/runbooks.md."""
    for name in pods(namespace):
        until_in_sync(namespace)  # otherwise producers would wait for two brokers
        before, since = restarts(namespace, name), time.time()
        said = namespace.kubectl("logs", name)
        kill_broker(namespace, name)

        def is_back(name: str = name, before: int = before) -> bool:
            return restarts(namespace, name) == before + 1 and settled(namespace)

        until("its container started again, the Cluster Ready", is_back, timeout=240)
        names = {"NS": namespace.name, "POD": name}
        previous = run_command(RUNBOOKS, tmp_path, "kubectl -n NS logs POD --previous", replace=names)
        assert said
        assert said in previous
        assert said not in namespace.kubectl("logs", name)
        measured(paced, f"kill -9 of {name}", since, KILLED_BOUND_S)


@pytest.mark.parametrize("number", range(ROLLS))
def test_all_brokers_and_zookeeper_at_once(namespace: Namespace, paced: Paced, number: int) -> None:
    before = ids(pods(namespace, ALL))
    namespace.kubectl("delete", "pod", "-l", ALL, "--wait=false")
    until("new pods", renewed(namespace, before, 6, ALL), timeout=300)
    paced.goes_on()
    found = pods(namespace, ALL).values()
    begun = max(started(status) for pod in found for status in pod["status"]["containerStatuses"])
    back = max(map(became_ready, found))
    acknowledged = max(min(one for one in times if one > begun) for times in paced.times.values())
    print(
        f"\nall at once: all partitions acknowledge {acknowledged - begun:.1f} s after the last container started, "
        f"{acknowledged - back:.1f} s after the last pod was ready"
    )
    assert acknowledged - back <= BACK_BOUND_S


def started(status: Json) -> float:
    """When a container started, in Unix time."""
    return unix(status["state"]["running"]["startedAt"])


def became_ready(pod: Json) -> float:
    (ready,) = (one for one in pod["status"]["conditions"] if one["type"] == "Ready")
    return unix(ready["lastTransitionTime"])


def unix(text: str) -> float:
    """Kubernetes' times have whole seconds."""
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def test_nothing_that_was_acknowledged_is_lost(namespace: Namespace, paced: Paced) -> None:
    nothing_is_lost(namespace, paced)
