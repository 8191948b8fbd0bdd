"""The topics of a run by their ids: offsets of a topic mean other records in a later one of its name.

The starter of a run knows the topics of its offsets (`topicIds`); without them, those at the start of the attempt
count. Each attempt compares the ids before it reads and once more before it commits. No two topics have one id, so
everything read between two equal answers is from the same topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream_jobs import positions
from millstream_jobs.run import BadRun, Run

Ids = Mapping[str, str | None]


class TopicReplaced(BadRun):
    """A topic was deleted and created again: no retry can read its records."""

    reason = "TopicReplaced"


def begin(run: Run) -> Ids:
    """The ids that the run's topics must keep. Raises TopicReplaced, ClusterError."""
    there = positions.topic_ids(run.brokers, run.topics)
    check(run.topic_ids, there)
    return {**there, **run.topic_ids}


def check_again(run: Run, ids: Ids) -> None:
    """Check after all reads, before the commit. A topic deleted since is no error: its records were read."""
    check(ids, positions.topic_ids(run.brokers, run.topics))


def check(known: Ids, there: Ids) -> None:
    """TopicReplaced if a topic has another id than the known one."""
    for topic, number in known.items():
        now = there.get(topic)
        if number and now and now != number:
            raise TopicReplaced(
                f"topics: {topic} was deleted and created again: its id is {now}, and was {number} when the offsets"
                " were resolved; nothing was published; resolve offsets of the new topic, under another name"
            )
