"""Strays: logs on brokers that fit no topic, and that nobody deleted; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from ...kafka.records import StrayLog, TopicState
from ...models.conditions import ConditionType, Reason
from ...models.problem import NewCondition
from ...models.words import count_of, size_of

KEPT_OF_NAME: Final = 200
"""Characters of topic and partition in the name of a stray's folder."""


def holders(strays: Iterable[StrayLog], name: str, topic_id: str | None) -> set[int]:
    """The brokers that keep strays of the topic that a Topic had; if its id is not known, of any topic of its name."""
    return {
        stray.broker
        for stray in strays
        if (stray.topic_id == topic_id if topic_id else _has_name(stray, name))
    }


def _has_name(stray: StrayLog, name: str) -> bool:
    is_shortened = len(f"{stray.topic}-{stray.partition}") >= KEPT_OF_NAME
    return name == stray.topic or (is_shortened and name.startswith(stray.topic))


def of_lost_partitions(strays: Iterable[StrayLog], topic: TopicState, wanted: int | None) -> list[StrayLog]:
    """The strays of partitions that the topic lacks, and would get as new ones if it had ``wanted``."""
    lacking = range(topic.partitions, wanted or 0)
    return [stray for stray in strays if stray.topic_id == topic.topic_id and stray.partition in lacking]


def condition(strays: Collection[StrayLog] | None) -> NewCondition | None:
    """``Strays`` of a Cluster: how many, how large, where, and what to do; None if there are none, or if unknown."""
    if not strays:
        return None
    brokers = sorted({stray.broker for stray in strays})
    where = "broker" if len(brokers) == 1 else "brokers"
    size = size_of(sum(stray.size for stray in strays))
    words = (
        f"{count_of(len(strays), 'log')} with {size} on {where} {', '.join(map(str, brokers))} fit no topic, and are"
        " kept as strays: if topics are missing, restore ZooKeeper, and they are their logs again; otherwise list them"
        " (millstream stray list) and remove them (millstream stray remove)"
    )
    return ConditionType.STRAYS, True, Reason.STRAY_LOGS, words


def outdated(strays: Collection[StrayLog] | None) -> tuple[ConditionType, ...]:
    """The condition ``Strays`` if it does not hold any more. While brokers do not answer, it stays as it was."""
    return (ConditionType.STRAYS,) if strays is not None and not strays else ()
