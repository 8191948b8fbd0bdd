"""The records that only the target had when its topics rejoined the source, in a MirrorMaker's status; pure.

They are gone from their topics, so the status keeps naming them when no worker can report them any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...models import MirrorMaker
from ...models.mirror import SetAside

SHOWN = 100

Rows = tuple[SetAside, ...]


def kept(mirror: MirrorMaker, reporting: Collection[str], promoted: Collection[str]) -> dict[str, Rows]:
    """The rows of the status before that nobody can report now, by source.

    ``reporting``: the sources of which all workers report; they leave out ``promoted`` topics.
    """
    return {
        source.name: tuple(
            one for one in source.set_aside or () if source.name not in reporting or one.topic in promoted
        )
        for source in mirror.status.sources or ()
    }


def merged(before: Iterable[SetAside], reported: Iterable[SetAside]) -> Rows | None:
    """The last row of each partition: of two workers, both may believe for a moment that they lead the group."""
    found = {(one.topic, one.partition): one for one in (*before, *reported)}
    return tuple(one for _, one in sorted(found.items()))[:SHOWN] or None
