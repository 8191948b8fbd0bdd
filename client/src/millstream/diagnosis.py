"""Finds out why a cluster cannot be reached: names, ports, TLS, protocol, versions, SASL, advertised addresses, strays,
partitions without a leader, topics, clocks.

`diagnose` tests each step separately and yields findings in order; a failed step says what to do, and steps that need
it are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from millstream import subscriptions
from millstream.addresses import host_port
from millstream.administering.strays import topics_of_strays
from millstream.clocks import clocks
from millstream.connection import Cluster
from millstream.errors import Failed, MillstreamError
from millstream.listener import Finding, connects, examine
from millstream.words import count

SHOWN: Final = 5
CLOCK_LIMIT_S: Final = 1.0


def diagnose(cluster: Cluster, *, clock: bool = False, topics: Sequence[str] = ()) -> Iterator[Finding]:
    """All findings. ``clock``: also compare clocks, by commits to new groups, which are deleted again.

    ``topics``: what consumers subscribe to, names or patterns (^…).
    """
    usable = False
    for host, port in cluster.addresses:
        for finding in examine(host, port, cluster.config):
            yield finding
        usable = usable or finding.step == "transactions"
        usable = usable or (finding.step in ("versions", "sasl") and not finding.problem)
    if not usable:
        return
    try:
        metadata = cluster.first_metadata
    except MillstreamError as error:
        yield Finding("metadata", cluster.bootstrap, problem=str(error))
        return
    yield Finding(
        "metadata",
        cluster.bootstrap,
        f"cluster {metadata.cluster_id}, {count(len(metadata.brokers), 'broker')}",
    )
    for broker in sorted(metadata.brokers.values(), key=lambda known: known.id):
        where = host_port(broker.host, broker.port)
        reason = connects(broker.host, broker.port)
        problem = (
            f"broker {broker.id} advertises it: {reason}; set advertised.listeners to what clients reach"
        )
        yield Finding("advertised", where, f"broker {broker.id}", problem if reason else "")
        if not reason:
            yield from _strays(broker.id, broker.host, broker.port, cluster.config)
    yield from _leaderless(cluster.bootstrap, metadata)
    for subscribed in topics:
        fact, problem = subscriptions.check(subscribed, metadata.topics)
        yield Finding("topic", subscribed, fact, problem)
    if clock:
        yield from _clocks(cluster, metadata)


def _strays(broker: int, host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Logs that the broker keeps although no topic has them; nothing if there are none, or it does not list them."""
    where = host_port(host, port)
    try:
        strays = topics_of_strays((host, port), config)
    except Failed:
        return
    if not strays:
        return
    topics = sorted(set(strays))
    more = f" and {len(topics) - SHOWN} more" if len(topics) > SHOWN else ""
    problem = (
        f"broker {broker} keeps {count(len(strays), 'log')} of topics that the cluster does not know:"
        f" {', '.join(topics[:SHOWN])}{more}; restore the cluster's ZooKeeper to have them back, or remove them"
        " (millstream stray list, millstream stray remove)"
    )
    yield Finding("strays", where, problem=problem)


def _leaderless(where: str, metadata: Any) -> Iterator[Finding]:
    """Partitions without a leader, and the brokers to start; nothing if all have one."""
    found = {
        f"{topic.topic}-{partition.id}": partition.replicas
        for topic in metadata.topics.values()
        for partition in topic.partitions.values()
        if partition.leader not in metadata.brokers
    }
    if not found:
        return
    down = sorted({broker for replicas in found.values() for broker in replicas} - metadata.brokers.keys())
    advice = (
        f"start {'broker' if len(down) == 1 else 'brokers'} {', '.join(map(str, down))}, which should have"
        f" {'it' if len(found) == 1 else 'them'}"
        if down
        else "all brokers that should have them run"
    )
    names = sorted(found)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    verb = "has" if len(names) == 1 else "have"
    problem = (
        f"{count(len(names), 'partition')} {verb} no leader: {', '.join(names[:SHOWN])}{more}; {advice}; after a"
        " restored ZooKeeper, the controller's log names the brokers that the comparison of logs waits for"
    )
    yield Finding("leaders", where, problem=problem)


def _clocks(cluster: Cluster, metadata: Any) -> Iterator[Finding]:
    try:
        for clock in clocks(cluster):
            broker = metadata.brokers.get(clock.broker)
            where = cluster.bootstrap if broker is None else host_port(broker.host, broker.port)
            if clock.unknown:
                problem = f"the time of broker {clock.broker} cannot be read: {clock.unknown}"
            elif abs(clock.ahead_s) > CLOCK_LIMIT_S:
                direction = "ahead of" if clock.ahead_s > 0 else "behind"
                problem = (
                    f"the clock of broker {clock.broker} is {abs(clock.ahead_s):.1f} s {direction} this machine's; "
                    "synchronise both (NTP)"
                )
            else:
                problem = ""
            said = f"broker {clock.broker}, within {max(abs(clock.ahead_s), 0.001):.3f} s of this machine's"
            yield Finding("clock", where, "" if problem else said, problem)
    except MillstreamError as error:
        yield Finding("clock", cluster.bootstrap, problem=f"no broker's time can be read: {error}")
