"""examples/two-regions on a real Kubernetes: a second region is mirrored, and its worker killed meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

from millstream_harness.chart import CLIENT, ROOT
from millstream_harness.kube import Namespace, until
from millstream_harness.pages import run_command
from millstream_harness.specs import manifest

KIND, TOPIC_KIND = "mirrormaker.millstream.dev", "topic.millstream.dev"
MIRROR = "west-to-east"
HALF = 20_000


def produce(namespace: Namespace, cluster: str, numbers: range) -> None:
    lines = b"".join(b"%d\torder %d\n" % (number % 97, number) for number in numbers)
    namespace.client(
        "millstream", "--bootstrap", f"{cluster}-bootstrap:9092", "produce", "orders", "--key-separator", "\\t",
        image=CLIENT, stdin=lines,
    )  # fmt: skip


def consume(namespace: Namespace, cluster: str, count: int) -> list[tuple[int, int, str]]:
    """(partition, offset, value) of this many records from the beginning."""
    said = namespace.client(
        "millstream", "--bootstrap", f"{cluster}-bootstrap:9092", "--output", "json",
        "consume", "orders", "--from", "earliest", "--max", str(count),
        image=CLIENT,
    )  # fmt: skip
    records = [json.loads(line) for line in said.splitlines()]
    return sorted((one["partition"], one["offset"], one["value"]) for one in records)


def test_the_example_mirrors_west_into_east(namespace: Namespace) -> None:
    namespace.apply(ROOT / "examples/two-regions")
    for cluster in ("west", "east"):
        namespace.wait_condition("cluster.millstream.dev", cluster, timeout=240)
    namespace.wait_condition("topic.millstream.dev", "orders")
    produce(namespace, "west", range(HALF))
    mirror = namespace.wait_condition(KIND, MIRROR, timeout=240)
    assert [one["name"] for one in mirror["status"]["sources"]] == ["west"]
    namespace.wait_condition(
        KIND, MIRROR, "CaughtUp", timeout=240
    )  # perhaps of a look before all was produced
    until(
        "all is in the east",
        lambda: consume(namespace, "east", HALF) == consume(namespace, "west", HALF),
        timeout=120,
        every=3,
    )


def test_a_killed_worker_neither_loses_nor_repeats(namespace: Namespace) -> None:
    (worker,) = namespace.list("pod", "-l", "app.kubernetes.io/component=mirror")
    namespace.kubectl(
        "delete", "pod", worker["metadata"]["name"], "--grace-period=0", "--force", "--wait=false"
    )
    produce(namespace, "west", range(HALF, 2 * HALF))

    def in_east() -> int:
        said = namespace.client(
            "millstream", "--bootstrap", "east-bootstrap:9092", "--output", "json", "topic", "describe", "orders",
            image=CLIENT,
        )  # fmt: skip
        return sum(one["latest"] - one["earliest"] for one in json.loads(said)["partitions"])

    until("all is in the east", lambda: in_east() >= 2 * HALF, timeout=240, every=3)
    until("no lag", lambda: namespace.lag(KIND, MIRROR) == 0, timeout=120)
    assert in_east() == 2 * HALF
    assert consume(namespace, "east", 2 * HALF) == consume(namespace, "west", 2 * HALF)


def deleted_without_its_data(namespace: Namespace, folder: Path) -> None:
    """Delete the Topic `spare` while its brokers are down: it waits for the page's annotation."""
    namespace.kubectl("delete", TOPIC_KIND, "spare", "--wait=false")
    namespace.wait_condition(TOPIC_KIND, "spare", status="False", reason="Deleting")
    command = "kubectl annotate KIND NAME millstream.dev/skip-deletion=true"
    resource = {"KIND NAME": f"--namespace {namespace.name} {TOPIC_KIND} spare"}
    run_command(ROOT / "docs/troubleshooting.md", folder, command, replace=resource)
    until("the Topic gone", lambda: not namespace.kubectl("get", TOPIC_KIND, "spare", "--ignore-not-found"))


def test_an_unreachable_source_says_so_and_heals(namespace: Namespace, tmp_path: Path) -> None:
    spec = {"clusterRef": {"name": "west"}, "partitions": 1, "deletionPolicy": "Delete"}
    namespace.apply({**manifest("Topic", spec), "metadata": {"name": "spare"}})
    namespace.wait_condition(TOPIC_KIND, "spare")
    (pod,) = namespace.list("pod", "-l", "millstream.dev/cluster=west,app.kubernetes.io/component=broker")
    # Paused, because the operator would put the broker back at once.
    namespace.kubectl("annotate", "cluster.millstream.dev", "west", "millstream.dev/paused=true")
    namespace.wait_condition("cluster.millstream.dev", "west", "Paused", reason="ReconcilePaused")
    namespace.kubectl("scale", "statefulset/west-brokers", "--replicas=0")
    namespace.kubectl("wait", "--for=delete", f"pod/{pod['metadata']['name']}", "--timeout=60s")
    for condition in ("SourceReachable", "Ready"):
        namespace.wait_condition(
            KIND, MIRROR, condition, status="False", reason="SourceUnreachable", timeout=120
        )
        assert namespace.condition(KIND, MIRROR, condition)["message"].startswith("west: ")
    deleted_without_its_data(namespace, tmp_path)
    namespace.kubectl("annotate", "cluster.millstream.dev", "west", "millstream.dev/paused-")
    namespace.wait_condition("cluster.millstream.dev", "west", timeout=180)  # the operator puts it back
    namespace.wait_condition(KIND, MIRROR, "SourceReachable", timeout=180)
    produce(namespace, "west", range(2 * HALF, 2 * HALF + 10))
    until(
        "mirrored again",
        lambda: consume(namespace, "east", 2 * HALF + 10) == consume(namespace, "west", 2 * HALF + 10),
        timeout=180,
        every=3,
    )


def test_one_cluster_and_topic_on_both_sides_is_refused(namespace: Namespace) -> None:
    namespace.apply(
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "MirrorMaker",
            "metadata": {"name": "loop"},
            "spec": {
                "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
                "target": {"clusterRef": {"name": "west"}},
                "topics": {"include": ["orders"]},
                "mode": "Aggregate",
            },
        }
    )
    condition = until(
        "the loop is refused",
        lambda: (c := namespace.condition(KIND, "loop")) and c.get("status") == "False" and c,
    )
    assert "west" in condition["message"]
    assert not namespace.list("deployment", "-l", "app.kubernetes.io/instance=loop")
    namespace.kubectl("delete", KIND, "loop")


def test_workers_read_their_login_from_a_secret(namespace: Namespace) -> None:
    namespace.kubectl("create", "secret", "generic", "west-login", "--from-literal=password=secret")
    login = {
        "mechanism": "SCRAM-SHA-512",
        "username": {"value": "mirror"},
        "password": {"secretKeyRef": {"name": "west-login", "key": "password"}},
    }
    namespace.apply(
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "MirrorMaker",
            "metadata": {"name": "with-login"},
            "spec": {
                "sources": [{"name": "west", "bootstrap": "west-bootstrap:9092", "sasl": login}],
                "target": {"clusterRef": {"name": "east"}},
                "topics": {"include": ["payments"]},
            },
        }
    )

    # The source has no logins: a worker that has read its own says so.
    def said() -> str:
        message: str = namespace.condition(KIND, "with-login", "SourceReachable").get("message", "")
        return message

    until("a try to sign in", lambda: "this listener needs no SASL" in said(), timeout=180)
    namespace.kubectl("delete", KIND, "with-login")
