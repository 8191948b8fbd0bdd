"""What TLS costs, and what access rules do: both brokers with the same certificates and rules."""

from __future__ import annotations

from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from millstream_bench import perf
from millstream_bench.figures import Figure
from millstream_bench.peers import Peer
from millstream_bench.steady import until_steady
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.produce import LARGE, warm_up
from millstream_bench.workloads.single import pipelined

PRODUCED, CONSUMED, SIZE = 600_000, 1_000_000, 1000
RULES, REQUESTS, TURNS = 10_000, 50_000, 3
AT_ONCE = 1_000
"""Rules in one request."""
USER = "User:ANONYMOUS"


def over_tls(peer: Peer, scale: float) -> Numbers:
    peer.start()
    warm_up(peer, scale, peer.tls_address)
    numbers: Numbers = {}
    for name, count in (("produce", scaled(PRODUCED, scale)), ("consume", scaled(CONSUMED, scale))):
        with perf.new_topic(peer.bootstrap) as topic:
            if name == "consume":
                perf.produce(peer.bootstrap, topic, count, SIZE, LARGE)
            before = peer.cpu_seconds()
            if name == "produce":
                speed = perf.produce(peer.tls_address, topic, count, SIZE, LARGE)
            else:
                speed = perf.consume(peer.tls_address, topic, count)
            used = peer.cpu_seconds() - before
            numbers |= {f"{name}: rate": speed, f"{name}: broker CPU": used / (count * SIZE / 1e9)}
    return numbers


def with_rules(peer: Peer, scale: float) -> Numbers:
    """The same requests without any rule and with all of them, in turns."""
    peer.start()
    warm_up(peer, scale)
    requests, costs = scaled(REQUESTS, scale), {"none": 0.0, "all": 0.0}
    turns: list[float] = []
    with perf.new_topic(peer.bootstrap) as topic:

        def work() -> None:
            pipelined(peer.bootstrap, topic, requests)

        until_steady(work, peer.cpu_seconds)
        for _ in range(TURNS):
            for rules in costs:
                if rules == "all":
                    create_rules(peer.bootstrap, scaled(RULES, scale))
                before = peer.cpu_seconds()
                work()
                used = peer.cpu_seconds() - before
                costs[rules] += used
                if rules == "none":
                    turns.append(used)
            delete_rules(peer.bootstrap)
    return {
        "CPU a million requests, no rules": costs["none"] / (TURNS * requests) * 1e6,
        "CPU with 10,000 rules over none": costs["all"] / costs["none"],
        "scatter without rules": (max(turns) - min(turns)) / (sum(turns) / TURNS),
    }


def create_rules(bootstrap: str, count: int) -> None:
    """Rules about topics and prefixes of many users, and one that lets the benchmark's client write."""
    rules = [
        *(
            _rule(f"topic-{index}", ResourcePatternType.LITERAL, f"User:user-{index % 100}")
            for index in range(count // 2)
        ),
        *(
            _rule(f"prefix-{index}-", ResourcePatternType.PREFIXED, f"User:user-{index % 100}")
            for index in range(count // 2, count - 1)
        ),
        _rule("bench-", ResourcePatternType.PREFIXED, USER),
    ]
    client = perf.admin(bootstrap)
    for at in range(0, len(rules), AT_ONCE):
        for created in client.create_acls(rules[at : at + AT_ONCE], request_timeout=60).values():
            created.result(60)


def delete_rules(bootstrap: str) -> None:
    client = perf.admin(bootstrap)
    anything: Any = None  # the class's own hints leave it out
    every = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for deleted in client.delete_acls([every], request_timeout=60).values():
        deleted.result(60)


def _rule(name: str, pattern: ResourcePatternType, user: str) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, pattern, user, "*", AclOperation.ALL, AclPermissionType.ALLOW)


SECURED = (
    Workload(
        name="tls-1k",
        title="Over TLS: 1 KB records, 64 KB batches, acks=1; ConsumerPerformance, hot cache",
        figures=(
            Figure("produce: rate", "records/s", higher_is_better=True, ratio=1.0),
            Figure("produce: broker CPU", "s a GB", ratio=0.8),
            Figure("consume: rate", "records/s", higher_is_better=True, ratio=1.0),
            Figure("consume: broker CPU", "s a GB", ratio=0.8),
        ),
        run=over_tls,
        own=True,
        tls=True,
    ),
    Workload(
        name="rules-10000",
        title="One record a request, 64 in flight, with 10,000 access rules and without any",
        figures=(
            Figure("CPU a million requests, no rules", "s"),
            Figure("CPU with 10,000 rules over none", "×", value=1.05),
            Figure("scatter without rules", "of the CPU"),
        ),
        run=with_rules,
        own=True,
        config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    ),
)
