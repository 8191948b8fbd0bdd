"""A MirrorMaker with mode Identity on a real Kubernetes: equal records at equal offsets, read-only until promotion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream_harness.chart import CLIENT, ROOT
from millstream_harness.kube import CommandFailed, Json, Namespace, until

KIND = "mirrormaker.millstream.dev"
MIRROR = "replica"
COUNT = 2_000
SPEC = {
    "mode": "Identity",
    "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
    "target": {"clusterRef": {"name": "east"}},
    "topics": {"include": ["orders"]},
    "groups": {"include": ["app"]},
}


def millstream(namespace: Namespace, cluster: str, *command: str, stdin: bytes = b"") -> str:
    return namespace.client(
        "millstream", "--bootstrap", f"{cluster}-bootstrap:9092", *command, image=CLIENT, stdin=stdin
    )


def produce(namespace: Namespace, cluster: str, numbers: range) -> None:
    lines = b"".join(b"%d\torder %d\n" % (number % 97, number) for number in numbers)
    millstream(namespace, cluster, "produce", "orders", "--key-separator", "\\t", stdin=lines)


def consume(namespace: Namespace, cluster: str, count: int) -> list[tuple[int, int, str]]:
    """(partition, offset, value) of this many records from the beginning."""
    said = millstream(
        namespace, cluster, "--output", "json", "consume", "orders", "--from", "earliest", "--max", str(count)
    )
    records = [json.loads(line) for line in said.splitlines()]
    return sorted((one["partition"], one["offset"], one["value"]) for one in records)


def positions(namespace: Namespace, cluster: str) -> list[Any]:
    try:
        said = millstream(namespace, cluster, "--output", "json", "group", "describe", "app")
    except CommandFailed:  # the group does not exist yet
        return []
    described: Json = json.loads(said)
    return sorted((one["partition"], one["committed"]) for one in described["partitions"])


def test_the_replica_has_the_records_at_their_offsets(namespace: Namespace) -> None:
    namespace.apply(ROOT / "examples/two-regions/clusters.yaml")
    namespace.apply(ROOT / "examples/two-regions/orders.yaml")
    for cluster in ("west", "east"):
        namespace.wait_condition("cluster.millstream.dev", cluster, timeout=240)
    namespace.wait_condition("topic.millstream.dev", "orders")
    produce(namespace, "west", range(COUNT))
    namespace.apply(
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "MirrorMaker",
            "metadata": {"name": MIRROR},
            "spec": SPEC,
        }
    )
    namespace.wait_condition(KIND, MIRROR, reason="Mirroring", timeout=240)
    namespace.wait_condition(KIND, MIRROR, "CaughtUp", timeout=240)
    until(
        "all records are there",
        lambda: consume(namespace, "east", COUNT) == consume(namespace, "west", COUNT),
        timeout=120,
        every=3,
    )
    millstream(
        namespace, "west", "consume", "orders", "--group", "app", "--from", "earliest", "--max", "1000"
    )
    wanted = positions(namespace, "west")
    assert wanted
    until("the group's positions", lambda: positions(namespace, "east") == wanted, timeout=120, every=3)


def test_it_is_read_only_until_it_is_promoted(namespace: Namespace) -> None:
    with pytest.raises(CommandFailed, match="is a read-only mirror of"):
        produce(namespace, "east", range(COUNT, COUNT + 1))
    (worker,) = namespace.list("pod", "-l", "app.kubernetes.io/component=mirror")
    namespace.kubectl("delete", "pod", worker["metadata"]["name"], "--grace-period=0", "--force")
    produce(namespace, "west", range(COUNT, 2 * COUNT))
    until(
        "mirrored by the next worker",
        lambda: consume(namespace, "east", 2 * COUNT) == consume(namespace, "west", 2 * COUNT),
        timeout=240,
        every=3,
    )
    namespace.patch(KIND, MIRROR, {"spec": {"promote": {"requestId": "planned"}}})
    promoted = namespace.wait_condition(KIND, MIRROR, "Promoted", reason="Promoted", timeout=120)
    last = promoted["status"]["lastPromotion"]
    assert (last["requestId"], last["state"], last["notMirrored"]) == ("planned", "Done", 0)
    (topic,) = last["topics"]
    assert (topic["topic"], topic["sourceEndsFrom"]) == ("orders", "Source")
    assert sum(topic["ends"]) == sum(topic["sourceEnds"]) == 2 * COUNT
    namespace.wait_condition(KIND, MIRROR, reason="Promoted", timeout=120)
    until(
        "the workers have ended",
        lambda: not namespace.list("pod", "-l", "app.kubernetes.io/component=mirror"),
        timeout=120,
    )
    produce(namespace, "east", range(2 * COUNT, 2 * COUNT + 10))
    found = consume(namespace, "east", 2 * COUNT + 10)
    assert len(found) == 2 * COUNT + 10
    assert set(consume(namespace, "west", 2 * COUNT)) < set(found)
