"""What TLS costs, and what access rules do: both brokers with the same certificates and rules."""

from __future__ import annotations

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from millstream_bench import perf
from millstream_bench.figures import Figure
from millstream_bench.peers import Peer, new_peer
from millstream_bench.steady import until_steady
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.produce import LARGE, warm_up
from millstream_bench.workloads.single import pipelined

PRODUCED, CONSUMED, SIZE = 600_000, 1_000_000, 1000
RULES, REQUESTS, TURNS = 10_000, 20_000, 10
AT_ONCE = 1_000
"""Rules in one request."""
USER = "User:ANONYMOUS"
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


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
    """The same requests to two brokers in short turns: first without rules (A/A), then one of them has all rules."""
    requests, rules = scaled(REQUESTS, scale), scaled(RULES, scale)
    with new_peer(peer.name, config=AUTHORIZED) as other:
        both = (peer, other)
        for each in both:
            each.start()
            warm_up(each, scale)
        with perf.new_topic(peer.bootstrap) as topic, perf.new_topic(other.bootstrap) as its:

            def turn(each: Peer, name: str) -> float:
                before = each.cpu_seconds()
                pipelined(each.bootstrap, name, requests)
                return each.cpu_seconds() - before

            def turns() -> tuple[float, float]:
                found = [(turn(peer, topic), turn(other, its)) for _ in range(TURNS)]
                return sum(first for first, _ in found), sum(second for _, second in found)

            for each, name in zip(both, (topic, its), strict=True):
                until_steady(lambda each=each, name=name: turn(each, name), each.cpu_seconds)  # type: ignore[misc]
            first, second = turns()
            create_rules(other.bootstrap, rules)
            without, having = turns()
    return {
        "CPU a million requests, no rules": without / (TURNS * requests) * 1e6,
        "CPU with 10,000 rules over none": having / without,
        "the same, neither has rules (A/A)": second / first,
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
            Figure("the same, neither has rules (A/A)", "×"),
        ),
        run=with_rules,
        own=True,
        config=AUTHORIZED,
    ),
)
