"""Several operators on the real API server: one of each release acts, and one release acts in each namespace."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from millstream_harness.kube import Namespace, run, until
from millstream_harness.manifests import cluster, topic
from millstream_harness.operator import OperatorProcess
from millstream_operator.manager.claims import CLAIM
from millstream_operator.state.status import FINALIZER

pytestmark = pytest.mark.soak

NewNamespace = Callable[[], Namespace]
StartOperator = Callable[..., OperatorProcess]


def acts(operator: OperatorProcess) -> bool:
    return f" as {operator.identity}\n" in operator.said()


def foreign(operator: OperatorProcess) -> dict[str, str]:
    found: dict[str, str] = operator.health()["work"]["foreignNamespaces"]
    return found


def reason(namespace: Namespace, name: str) -> str:
    conditions = namespace.get("topics.millstream.dev", name).get("status", {}).get("conditions", [])
    return str(conditions[0]["reason"]) if conditions else ""


def is_looked_at(namespace: Namespace, name: str) -> None:
    """Wait until the acting operator reports that a new Topic has no Cluster."""
    namespace.apply(topic(name))
    until(f"{name} looked at", lambda: reason(namespace, name) == "ClusterNotFound")


def lease_of(operator: OperatorProcess) -> dict[str, Any]:
    where, _, name = operator.lease.partition("/")
    found: dict[str, Any] = json.loads(run("kubectl", "--namespace", where, "get", "lease", name, "-o=json"))
    return found


def test_a_standby_takes_over_when_the_other_one_ends(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    first = start_operator({})
    is_looked_at(namespace, "one")
    second = start_operator({})
    until("it stands by", lambda: "standing by: operator-1 holds the Lease" in second.said())
    is_looked_at(namespace, "two")
    assert acts(first)
    assert not acts(second)
    assert "reconciled Topic" not in second.said()
    assert first.stop() == 0
    assert "released the Lease" in first.said()
    assert lease_of(first)["spec"]["holderIdentity"] in ("", second.identity), "the standby need not wait"
    until("the standby acts", lambda: acts(second))
    until("its health says so", lambda: second.health()["work"]["acts"])
    is_looked_at(namespace, "three")
    spec = lease_of(second)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("operator-2", 1)


def test_a_standby_takes_over_from_one_that_is_killed(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    first = start_operator({})
    until("it acts", lambda: acts(first))
    second = start_operator({})
    first.kill()
    until("the standby acts", lambda: acts(second))
    is_looked_at(namespace, "one")


def test_an_operator_that_lost_its_lease_ends_and_writes_nothing(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    first = start_operator({})
    is_looked_at(namespace, "before")
    second = start_operator({})
    first.pause()  # as on a starved node
    try:
        until("the standby acts", lambda: acts(second))
        is_looked_at(namespace, "after")
    finally:
        first.resume()
    assert first.wait(120) == 1
    assert "lost the Lease" in first.said()
    assert f"reconciled Topic {namespace.name}/after" not in first.said()
    assert acts(second)


def test_an_operator_without_its_lease_ends(namespace: Namespace, start_operator: StartOperator) -> None:
    first = start_operator({})
    until("it acts", lambda: acts(first))
    where, _, name = first.lease.partition("/")
    change = json.dumps({"spec": {"holderIdentity": "somebody-else"}})
    run("kubectl", "--namespace", where, "patch", "lease", name, "--type=merge", "--patch", change)
    assert first.wait(120) == 1
    assert "(held by somebody-else): exiting" in first.said()


def test_of_two_releases_that_watch_a_namespace_one_acts_and_the_other_says_so(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    first = start_operator({})
    is_looked_at(namespace, "one")
    second = start_operator({}, release=f"{namespace.name}-second")
    until("it says so", lambda: "leaves it alone" in second.said())
    until("its health, too", lambda: foreign(second) == {namespace.name: first.lease})
    assert acts(first)
    assert acts(second), "in its other namespaces, if it had any"
    (event,) = namespace.list("events", "--field-selector=reason=WatchedTwice")
    assert event["type"] == "Warning"
    assert event["involvedObject"]["name"] == CLAIM
    assert f"kubectl --namespace {namespace.name} delete lease {CLAIM}" in event["message"]
    first.stop()
    namespace.apply(topic("two"))
    second.looks_at(f"Topic {namespace.name}/two")
    assert reason(namespace, "two") == "", "a release that is away keeps its namespaces"
    namespace.kubectl("delete", "lease", CLAIM)
    is_looked_at(namespace, "two")
    assert namespace.get("lease", CLAIM)["spec"]["holderIdentity"] == second.lease
    until("its health, too", lambda: foreign(second) == {})


def test_a_release_does_not_act_on_a_cluster_where_another_one_does(
    new_namespace: NewNamespace, namespace: Namespace, start_operator: StartOperator
) -> None:
    """Both would apply their own Topics to one topic: each release compares the age of only its own Topics."""
    other = new_namespace()
    shared = cluster("shared", allowedNamespaces=[other.name])
    shared["metadata"]["annotations"] = {"millstream.dev/paused": "true"}  # its pods do not matter here
    namespace.apply(shared)
    first = start_operator({})
    until("the namespace is taken", lambda: namespace.list("lease") != [])
    second = start_operator({}, (namespace, other), release=other.name)
    reference = {"name": "shared", "namespace": namespace.name}
    other.apply(topic("flights", clusterRef=reference))
    until("it is refused", lambda: reason(other, "flights") == "OtherRelease")
    (condition,) = other.get("topics.millstream.dev", "flights")["status"]["conditions"]
    assert "give both namespaces to one release" in condition["message"]
    first.stop()
    namespace.kubectl("delete", "lease", CLAIM)
    until("it is acted on", lambda: reason(other, "flights") == "ClusterNotReady")
    assert namespace.get("lease", CLAIM)["spec"]["holderIdentity"] == second.lease


def test_uninstalling_leaves_the_namespaces_to_others(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    operator = start_operator({})
    is_looked_at(namespace, "one")
    operator.stop()

    def release(lease: str) -> str:
        hook = [sys.executable, "-m", "millstream_operator.tools.hooks", "release", "--operator=nowhere/none"]
        return run(*hook, f"--lease={lease}", f"--namespace={namespace.name}")

    held = topic("held")
    namespace.apply({**held, "metadata": {**held["metadata"], "finalizers": [FINALIZER]}})
    assert release("default/other") == "", "nor does it free what another release holds"
    assert namespace.get("topics.millstream.dev", "held")["metadata"]["finalizers"] == [FINALIZER]
    assert namespace.get("lease", CLAIM)["spec"]["holderIdentity"] == operator.lease
    done = [f"released Topic {namespace.name}/held", f"left namespace {namespace.name}"]
    assert release(operator.lease).splitlines() == done
    assert namespace.list("lease") == []
