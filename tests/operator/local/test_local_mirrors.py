"""The local runtime with two regions: real brokers and real mirror workers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer

from millstream_harness.local import DEADLINE_S, Sandbox, consume, partitions, produce
from millstream_harness.mirror_groups import commit, follows
from millstream_operator.local.processes import wait_for
from millstream_operator.local.runtime import Outcome

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[3]


def test_two_regions(sandbox: Sandbox) -> None:
    for example in (ROOT / "examples/two-regions").glob("*.yaml"):
        text = example.read_text().replace('["orders.*"]', '["orders.*", "ordrs"]')
        (sandbox.manifests / example.name).write_text(text)
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert outcome.failures == {}
    warning = 'spec.topics.include: "ordrs" matches no topic of west; patterns match whole names'
    assert f"MirrorMaker west-to-east: {warning}" in sandbox.said
    assert f"MirrorMaker west-to-east: {warning}" in sandbox.run("status").stdout
    west, east = (sandbox.found("Cluster", name)["status"]["bootstrap"] for name in ("west", "east"))
    assert west != east
    produce(west, "orders", 500)
    assert consume(east, "orders", 500) == list(range(500))
    assert partitions(east, "orders") == 3

    def caught_up(count: int) -> bool:
        status = sandbox.found("MirrorMaker", "west-to-east")["status"]
        conditions = {entry["type"]: entry["status"] for entry in status["conditions"]}
        return (
            status.get("topics") == 1 and status["lag"]["records"] == 0 and conditions["CaughtUp"] == "True"
        )

    assert wait_for(lambda: caught_up(500), DEADLINE_S)
    assert sandbox.ready("MirrorMaker", "west-to-east")[0] == "True"

    # A consumer group finds its positions in the other region.
    commit(SimpleNamespace(bootstrap=west), "app", "orders", 0, 4, 5)
    follows(SimpleNamespace(bootstrap=east), "app", "orders", 0, 4, 5)
    assert wait_for(
        lambda: sandbox.found("MirrorMaker", "west-to-east")["status"]["sources"][0]["groups"] == 1,
        DEADLINE_S,
    )

    # A worker that dies goes on where it was: nothing twice, nothing lost.
    sandbox.kill("mirror/default/west-to-east/0")
    produce(west, "orders", 300)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    expected = sorted([*range(500), *range(300)])
    numbers: list[int] = []
    consumer = Consumer({"bootstrap.servers": east, "group.id": "all", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])

    def all_there() -> bool:
        numbers.extend(json.loads(message.value() or b"")["n"] for message in consumer.consume(500, 0.5))
        return len(numbers) >= len(expected)

    try:
        assert wait_for(all_there, DEADLINE_S)
    finally:
        consumer.close()
    assert sorted(numbers) == expected
    assert len(sandbox.runtime().down()) == 3


def test_a_mirror_is_promoted_when_its_source_is_lost(sandbox: Sandbox) -> None:
    """One manifest does it, without the source; done again, nothing changes."""
    for name in ("west", "east"):
        sandbox.write("Cluster", name, "{}")
    for topic in ("orders", "payments"):
        sandbox.write("Topic", topic, "{clusterRef: {name: west}, partitions: 2}")
    spec = (
        "sources: [{name: west, clusterRef: {name: west}}], target: {clusterRef: {name: east}}, mode: Identity,"
        " topics: {include: [orders, payments]}"
    )
    sandbox.write("MirrorMaker", "copy", f"{{{spec}}}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    west, east = (sandbox.found("Cluster", name)["status"]["bootstrap"] for name in ("west", "east"))
    for topic in ("orders", "payments"):
        produce(west, topic, 100)
        assert consume(east, topic, 100) == list(range(100))
    sandbox.kill()
    alone = sandbox.manifests.with_name("alone")
    alone.mkdir()

    def promote(how: str) -> tuple[Outcome, dict[str, Any]]:
        sandbox.write("MirrorMaker", "copy", f"{{{spec}, promote: {how}}}")
        (sandbox.manifests / "MirrorMaker-copy.yaml").replace(alone / "mirror.yaml")
        done = sandbox.runtime().up(alone)
        return done, json.loads(json.dumps(sandbox.found("MirrorMaker", "copy")["status"]))

    failed, _ = promote("{requestId: typo, topics: [oders]}")
    assert failed.failures["MirrorMaker default/copy"].startswith(
        "request typo: there is no topic oders in the target; this mirror's topics are orders, payments: "
    )
    done, status = promote("{requestId: one, topics: [orders]}")
    assert done.failures == {}
    last = status["lastPromotion"]
    assert (last["state"], last["notMirrored"]) == ("Done", 0)
    assert f"MirrorMaker copy: request one: {last['message']}" in sandbox.said
    produce(east, "orders", 5)
    assert promote("{requestId: one, topics: [orders]}")[1]["lastPromotion"] == last

    done, status = promote("{requestId: rest}")
    assert done.failures == {}
    assert status["lastPromotion"]["message"].startswith(
        "1 topic promoted; promoted before: orders; at least 0 records"
    )
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions == {"Ready": ("True", "Promoted"), "Promoted": ("True", "Promoted")}
    produce(east, "payments", 5)
    stopped = sandbox.runtime().down()
    assert not [name for name in stopped if name.startswith("mirror/")], "its workers had ended"
