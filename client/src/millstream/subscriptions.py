"""Why a consumer's subscription may bring nothing: topics that do not exist, and patterns that match none.

librdkafka reports a missing topic as an error of the consumer, which programs often only log; with
`group.protocol=consumer` it reports nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from millstream.topics import INTERNAL
from millstream.words import count


def check(subscribed: str, topics: Mapping[str, Any]) -> tuple[str, str]:
    """What a subscription finds among the cluster's topics (from metadata), and the problem; one of both is "".

    ``subscribed``: a name, or a pattern that begins with ^, as librdkafka takes them.
    """
    if subscribed.startswith("^"):
        return _pattern(subscribed, topics)
    if subscribed not in topics:
        near = difflib.get_close_matches(subscribed, topics, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        return "", (
            f"there is no topic of this name; {meant}A consumer that subscribes to it waits, and with "
            "group.protocol=consumer librdkafka does not even report that; create it (millstream topic create)"
        )
    partitions = topics[subscribed].partitions
    if leaderless := sorted(number for number, partition in partitions.items() if partition.leader < 0):
        return "", (
            f"{count(len(leaderless), 'partition')} of {len(partitions)} have no leader, so their records wait: "
            f"{', '.join(map(str, leaderless[:10]))}; start the brokers that have them (millstream cluster info)"
        )
    return count(len(partitions), "partition"), ""


def _pattern(pattern: str, topics: Mapping[str, Any]) -> tuple[str, str]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        return "", f"it is no regular expression: {error}"
    found = sorted(name for name in topics if name not in INTERNAL and expression.match(name))
    if not found:
        return "", (
            f"the pattern matches none of {count(len(topics), 'topic')}; a consumer that subscribes to it waits until "
            "one is created, without an error; millstream topic list shows the names"
        )
    return f"matches {count(len(found), 'topic')}, such as {found[0]}", ""
