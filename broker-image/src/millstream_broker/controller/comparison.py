"""Elects leaders by their logs, after the store was restored from an older copy of itself. Pure.

Such a store is wrong about the ISR, and perhaps about the replicas: a replica that was out may be in, and a partition
may be at brokers that have deleted it since. A broker whose log directories are ahead of the store shows that when it
registers (`generations`). From then on nobody leads (`doubted`), and every live broker is asked how far its log of the
topic id goes, whether it is a replica or not, and even if its log is a stray. The most complete log leads: the one with
the largest last epoch, then with the largest end (`recovery`). If its broker is not a replica, it becomes one first.

The logs of enough replicas must be known: of so many that each acknowledged record is in one of them, whichever ISR of
`min.insync.replicas` had it. If a member of the ISR has no log, the partition may have moved to brokers that are not
replicas here, so all known brokers must live. If none of them has a log, there is nothing to lose, and the first
replica leads. An unclean election decides among the live ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..coordination import NO_LEADER, PartitionRecord
from .messages import LogEnd


def doubted(record: PartitionRecord, missed: int, first_epoch: int) -> PartitionRecord:
    """The state that nobody leads; `missed` leader epochs may have been given and forgotten."""
    if record.doubted and record.leader == NO_LEADER:
        return record
    return replace(
        record,
        leader=NO_LEADER,
        leader_epoch=max(record.leader_epoch + 1, first_epoch) + missed,
        isr=record.isr or record.replicas,
        elr=(),
        suspects=record.replicas,
        doubted=True,
    )


def winner(
    record: PartitionRecord,
    live: Collection[int],
    ends: Mapping[int, LogEnd],
    min_isr: int,
    *,
    all_live: bool,
    unclean: bool,
) -> int | None:
    """The broker to lead, perhaps not a replica yet; None if that is not known."""
    replicas = [r for r in record.replicas if r in live]
    if not unclean and not all(broker in ends for broker in live):
        return None
    logs = {broker: ends[broker] for broker in live if broker in ends and ends[broker][1] >= 0}
    too_few, may_be_elsewhere = len(replicas) < _needed(record, min_isr), _may_have_moved(record, live, ends)
    if not unclean and (too_few or (may_be_elsewhere and not all_live)):
        return None
    if not logs:
        return replicas[0] if replicas else None

    def rank(broker: int) -> tuple[LogEnd, bool, int]:
        """Among equals, replicas lead, in their order."""
        order = record.replicas.index(broker) if broker in record.replicas else len(record.replicas)
        return logs[broker], broker in record.isr, -order

    return max(logs, key=rank)


def missing(
    record: PartitionRecord,
    live: Collection[int],
    ends: Mapping[int, LogEnd],
    min_isr: int,
    known: Collection[int],
) -> tuple[int, ...]:
    """The brokers, of all `known` ones, of which some must start before one leads; none while live ones are asked."""
    if not all(broker in ends for broker in live):
        return ()
    if sum(r in live for r in record.replicas) < _needed(record, min_isr):
        return tuple(r for r in record.replicas if r not in live)
    if _may_have_moved(record, live, ends):
        return tuple(sorted(broker for broker in known if broker not in live))
    return ()


def _needed(record: PartitionRecord, min_isr: int) -> int:
    """Number of replicas of which one has each acknowledged record: `min_isr` had it."""
    return len(record.replicas) - max(1, min(min_isr, len(record.replicas))) + 1


def _may_have_moved(record: PartitionRecord, live: Collection[int], ends: Mapping[int, LogEnd]) -> bool:
    """Whether the logs may be at brokers that are no replicas here: no live one, or one in the ISR, has none."""
    logs = [broker for broker in live if broker in ends and ends[broker][1] >= 0]
    return not logs or any(r in ends and r not in logs for r in record.isr if r in live)


def elected(
    record: PartitionRecord, broker: int, ends: Mapping[int, LogEnd], distance: int
) -> PartitionRecord:
    """The state in which this broker, a replica, leads, in an epoch above all that logs have.

    A broker that does not live may have led in a later one, of which nobody here knows: `distance` keeps away from
    those (`leader_epochs`). Two leaders in one epoch would write different records, and no follower would notice.
    """
    newest = max((epoch for epoch, _ in ends.values()), default=-1)
    epoch = max(record.leader_epoch, newest) + 1 + distance
    return replace(
        record,
        leader=broker,
        leader_epoch=epoch,
        isr=(broker,),
        elr=(),
        suspects=(),
        doubted=False,
        compared=epoch,
    )
