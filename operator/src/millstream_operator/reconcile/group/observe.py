"""Reads groups' committed positions and lags from brokers, in a handful of requests for all groups.

A position belongs to a topic's id, and a topic may be deleted and created again between two requests. So a position
counts only if it was read after the topic's present id was seen, and if the topic still has this id after the end of
its log was read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from ...kafka.admin import KafkaAdmin
from ...kafka.records import EARLIEST, LATEST, GroupState, Partition, TopicIdentity, no_leader
from ...models import ConsumerGroup
from ...models.conditions import Reason
from ...models.problem import Problem, is_paused
from ...state.cache import key_for
from .plan import Observed, plan_start

logger = logging.getLogger(__name__)

Committed = dict[str, dict[Partition, int]]


def observe(admin: KafkaAdmin, groups: Sequence[ConsumerGroup]) -> dict[str, Observed | Problem]:
    """The state of the groups, by group id, or why it is unknown. Makes first commits on the way."""
    states = admin.groups([group.group_id for group in groups])
    committed = {group.group_id: dict[Partition, int]() for group in groups}
    committed.update(admin.committed(list(committed)))
    topics = {topic for group in groups for topic in group.spec.topics}
    topics |= {partition.topic for offsets in committed.values() for partition in offsets}
    identities = admin.identities(topics)
    if doubtful := [one.group_id for one in groups if not _knows(one, committed[one.group_id], identities)]:
        committed.update(admin.committed(doubtful))
    partitions = {name: identity.partitions for name, identity in identities.items()}
    started, leaderless = _start(admin, groups, states, committed, partitions)
    everything = [
        Partition(name, index) for name, one in identities.items() for index in range(one.partitions)
    ]
    ends = admin.led_offsets(dict.fromkeys((one for one in everything if one not in leaderless), LATEST))
    replaced = _replaced(identities, admin.identities(list(identities)))
    for group_id, first in started.items():
        take_back(admin, group_id, first, replaced)
    by_topic: dict[str, dict[Partition, int]] = {name: {} for name in identities}
    for partition, end in ends.items():
        by_topic[partition.topic][partition] = end
    without = set(everything) - ends.keys()
    result: dict[str, Observed | Problem] = {}
    for group in groups:
        offsets = committed[group.group_id]
        named = {*group.spec.topics, *(partition.topic for partition in offsets)}
        own = [name for name in sorted(named) if name in identities]
        if hidden := [partition for partition in without if partition.topic in own]:
            result[group.group_id] = Problem(Reason.CLUSTER_NOT_READY, no_leader(hidden))
            continue
        result[group.group_id] = Observed(
            state=states[group.group_id],
            committed={
                partition: offset for partition, offset in offsets.items() if partition.topic not in replaced
            },
            ends={partition: end for name in own for partition, end in by_topic[name].items()},
            missing=tuple(topic for topic in group.spec.topics if topic not in identities),
            topic_ids={name: identities[name].topic_id for name in own},
        )
    return result


def _start(
    admin: KafkaAdmin,
    groups: Sequence[ConsumerGroup],
    states: dict[str, GroupState],
    committed: Committed,
    partitions: Mapping[str, int],
) -> tuple[Committed, set[Partition]]:
    """Make first commits, and enter them in ``committed``; also returns the partitions that have no leader.

    A group one of whose partitions has none does not start: without a position, its consumers would choose their own.
    """
    starts = {
        group.group_id: start
        for group in groups
        if not is_paused(group)
        and (
            start := plan_start(
                group.spec, states[group.group_id].state, committed[group.group_id], partitions
            )
        )
    }
    firsts: dict[str, dict[Partition, int]] = {}
    leaderless: set[Partition] = set()
    for at, when in (("Earliest", EARLIEST), ("Latest", LATEST)):
        names = [group.group_id for group in groups if group.group_id in starts and group.spec.start_at == at]
        wanted = {one for name in names for one in starts[name]} - leaderless
        if wanted:
            found = admin.led_offsets(dict.fromkeys(sorted(wanted), when))
            leaderless |= wanted - found.keys()
            firsts |= {
                name: {one: found[one] for one in starts[name]}
                for name in names
                if leaderless.isdisjoint(starts[name])
            }
    started: Committed = {}
    for group in groups:
        if (first := firsts.get(group.group_id)) is None:
            continue
        if (refused := admin.commit(group.group_id, first)) is not None:
            # a consumer has just joined: it owns the group now
            logger.info("%s: %s", key_for(group), refused)
            continue
        started[group.group_id] = first
        committed[group.group_id] = {**committed[group.group_id], **first}
        states.update(admin.groups([group.group_id]))
    return started, leaderless


def take_back(
    admin: KafkaAdmin, group_id: str, offsets: Mapping[Partition, int], replaced: Collection[str]
) -> None:
    """Delete positions that were committed for topics which have been recreated since.

    Positions that a consumer has committed meanwhile stay.
    """
    if not (doubtful := {one: offset for one, offset in offsets.items() if one.topic in replaced}):
        return
    found = admin.committed([group_id])[group_id]
    ours = [partition for partition, offset in doubtful.items() if found.get(partition) == offset]
    if ours and (refused := admin.delete_offsets(group_id, ours)) is not None:
        logger.warning("group %s: cannot delete the positions of a deleted topic: %s", group_id, refused)


def _knows(
    group: ConsumerGroup, committed: Mapping[Partition, int], identities: Mapping[str, TopicIdentity]
) -> bool:
    """Whether the topics of these positions have the same ids as at the last reconcile."""
    known = {topic.topic: topic.topic_id for topic in group.status.topics or ()}
    topics = {partition.topic for partition in committed} & identities.keys()
    return all(name in known and known[name] == identities[name].topic_id for name in topics)


def _replaced(before: Mapping[str, TopicIdentity], after: Mapping[str, TopicIdentity]) -> set[str]:
    """Topics that are gone or recreated."""
    return {name for name, one in before.items() if name not in after or after[name].topic_id != one.topic_id}
