"""Which offsets a run of a BatchLoad loads; pure.

A load continues where its last success ended: `status.committed` has an offset for every partition, with the id of its
topic. The first run begins at `spec.from`; so does the next run after `spec.from` changes, or after the rows go into
another table. No other edit can load a record into the same table twice.

Impossible positions are a ``Problem``: a topic that was deleted and recreated (its offsets mean other records), records
that retention deleted before they were loaded, a truncated log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from ...models import BatchLoad, Committed, From, LoadedPartition, OffsetRange, Rerun, RerunFrom, Until
from ...models.conditions import Reason, rfc3339
from ...models.load_value import Record
from ...models.problem import Problem, shown
from ...resources.owned import digest

MOST_NAMED = 10  # partitions in a message
MOST_LISTED = 50  # offsets in a message
MOST_BYTES = 400_000
"""Limit of a run's ranges as JSON. A status has up to three such lists, and Kubernetes stores 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A partition's first offset and its end offset; ``from_time``/``until_time`` if the range names times."""

    earliest: int
    latest: int
    from_time: int | None = None
    until_time: int | None = None
    topic_id: str | None = None


Key = tuple[str, int]
Partitions = Mapping[Key, Ends]


def digest_of_spec(load: BatchLoad) -> str:
    """Digest of everything that determines the loaded rows: topics, minRecords, range, values, columns, table."""
    spec = load.spec
    parts = (spec.topics, spec.min_records, spec.from_, spec.until, spec.value, spec.output)
    return digest(parts if spec.record == Record() else (*parts, spec.record))


def digest_of_positions(load: BatchLoad) -> str:
    """Digest of the positions: while it stays the same, a failed run is repeated with its offsets."""
    spec = load.spec
    return digest((sorted(spec.topics), spec.from_, spec.until))


def table_name(load: BatchLoad) -> str:
    """The name of the table that rows go into; each table has its own range. An Iceberg warehouse holds many tables."""
    output = load.spec.output
    return f"{output.path.rstrip('/')}/{output.table.replace('.', '/')}" if output.table else output.path


def goes_on(load: BatchLoad) -> Committed | None:
    """The end of the last success, if the next run continues from there."""
    committed = load.status.committed
    if committed is None or committed.path != table_name(load):
        return None
    if load.spec.from_.position == "Committed" or committed.from_ == digest_of_from(load):
        return committed
    return None


def resolve(load: BatchLoad, partitions: Partitions) -> tuple[OffsetRange, ...] | Problem:
    """The offsets of a run that begins now."""
    spec, committed = load.spec, goes_on(load)
    if problem := _check_times("spec", spec.from_.timestamp, spec.until.timestamp):
        return problem
    begins = (
        _positions("spec.from", spec.from_, partitions)
        if committed is None
        else _continued(committed, partitions)
    )
    ends = _positions("spec.until", spec.until, partitions)
    if isinstance(begins, Problem):
        return begins
    if isinstance(ends, Problem):
        return ends
    if committed is not None:
        return _ranges(begins, {key: max(ends[key], first) for key, first in begins.items()}, partitions)
    by_offset = "Offsets" in (spec.from_.position, spec.until.position)
    return _checked("spec", begins, ends, partitions, strict=by_offset)


def resolve_rerun(load: BatchLoad, rerun: Rerun, partitions: Partitions) -> tuple[OffsetRange, ...] | Problem:
    """The offsets of a rerun: records already loaded, not those that later runs will load."""
    if problem := _check_times("spec.rerun", rerun.from_.timestamp, rerun.until.timestamp):
        return problem
    begins = _positions("spec.rerun.from", rerun.from_, partitions)
    ends = _positions("spec.rerun.until", rerun.until, partitions)
    if isinstance(begins, Problem):
        return begins
    if isinstance(ends, Problem):
        return ends
    if (committed := goes_on(load)) is not None:
        if problem := _replaced(committed, partitions):
            return problem
        loaded = {(offset.topic, offset.partition): offset.offset for offset in committed.offsets}
        ends = {key: min(end, loaded.get(key, end)) for key, end in ends.items()}
    by_offset = "Offsets" in (rerun.from_.position, rerun.until.position)
    return _checked("spec.rerun", begins, ends, partitions, strict=by_offset)


def records(offsets: tuple[OffsetRange, ...]) -> int:
    return sum(part.until - part.from_ for part in offsets)


def check_size(offsets: tuple[OffsetRange, ...]) -> Problem | None:
    """Why there are too many partitions for one load; None if there are not."""
    size = len(msgspec.json.encode(offsets))
    if size <= MOST_BYTES:
        return None
    most = len(offsets) * MOST_BYTES // size
    return _invalid(
        f"spec.topics: {len(offsets):,} partitions are not allowed, since the resource keeps an offset of each; "
        f"allowed: about {most:,} with names of this length; spread the topics over several BatchLoads"
    )


def empty(offsets: tuple[OffsetRange, ...]) -> tuple[OffsetRange, ...]:
    """The same range without its records."""
    return tuple(msgspec.structs.replace(part, until=part.from_) for part in offsets)


def committed_by(load: BatchLoad, path: str, offsets: tuple[OffsetRange, ...], from_: str) -> Committed:
    """The committed offsets after a success; they keep partitions of topics that are no longer loaded."""
    before = load.status.committed
    kept = before.offsets if before is not None and before.path == path else ()
    loaded = {(one.topic, one.partition): one for one in kept}
    for part in offsets:
        loaded[part.topic, part.partition] = LoadedPartition(
            topic=part.topic, partition=part.partition, offset=part.until, topic_id=part.topic_id
        )
    return Committed(path=path, from_=from_, offsets=tuple(one for _, one in sorted(loaded.items())))


def digest_of_from(load: BatchLoad) -> str:
    return digest(load.spec.from_)


def _continued(committed: Committed, partitions: Partitions) -> dict[Key, int] | Problem:
    if problem := _replaced(committed, partitions):
        return problem
    loaded = {(offset.topic, offset.partition): offset.offset for offset in committed.offsets}
    begins, gone, cut = {}, [], []
    for key, ends in sorted(partitions.items()):
        begins[key] = at = loaded.get(key, ends.earliest)
        if at < ends.earliest:
            gone.append(f"{at} to {ends.earliest - 1} of {_named([key])}")
        elif at > ends.latest:
            cut.append(f"{_named([key])} ends at {ends.latest}, before {at}")
    if gone:
        return Problem(
            Reason.OFFSETS_GONE,
            f"offsets {shown(gone, MOST_NAMED)} were deleted by retention before they were loaded;"
            f" {_without_repeats(loaded, partitions)}",
        )
    if cut:
        return Problem(
            Reason.OFFSETS_GONE,
            f"{shown(cut, MOST_NAMED)}, where the last successful run ended: records were lost, and later ones have"
            f" offsets that were loaded before; {_without_repeats(loaded, partitions)}; lower an offset to load records"
            " that came after the loss",
        )
    return begins


def _replaced(committed: Committed, partitions: Partitions) -> Problem | None:
    there = {topic: ends.topic_id for (topic, _), ends in partitions.items()}
    same = {
        (offset.topic, offset.partition): offset.offset
        for offset in committed.offsets
        if not offset.topic_id or there.get(offset.topic) in (None, offset.topic_id)
    }
    for offset in committed.offsets:
        now = there.get(offset.topic)
        if offset.topic_id and now and offset.topic_id != now:
            return Problem(
                Reason.TOPIC_REPLACED,
                f"topic {offset.topic} was deleted and created again: its id is {now}, and was {offset.topic_id} when"
                f" the last successful run ended; {_without_repeats(same, partitions)}; if the new topic has records"
                " that were loaded before, give the offsets after them",
            )
    return None


def _without_repeats(loaded: Mapping[Key, int], partitions: Partitions) -> str:
    """How to continue without loading a record twice: at the end of what was loaded, as far as that is in the logs."""
    begins = {
        key: min(max(loaded.get(key, ends.earliest), ends.earliest), ends.latest)
        for key, ends in sorted(partitions.items())
    }
    listed = ", ".join(
        f"{{topic: {topic}, partition: {partition}, offset: {offset}}}"
        for (topic, partition), offset in list(begins.items())[:MOST_LISTED]
    )
    more = (
        ", and so on: for each partition its offset in status.committed, or its first one if that is larger"
        if len(begins) > MOST_LISTED
        else ""
    )
    twice = sum(offset - partitions[key].earliest for key, offset in begins.items() if key in loaded)
    beware = f"; position Earliest would load up to {twice:,} offsets a second time" if twice else ""
    return (
        "to continue, set spec.from to {position: Offsets, requestId: ..., offsets: ["
        f"{listed}{more}]}} with a new requestId{beware}"
    )


def _positions(
    field: str, wanted: From | RerunFrom | Until, partitions: Partitions
) -> dict[Key, int] | Problem:
    match wanted.position:
        case "Earliest" | "Committed":  # before the first run has succeeded nothing is committed
            return {key: ends.earliest for key, ends in partitions.items()}
        case "Latest":
            return {key: ends.latest for key, ends in partitions.items()}
        case "Timestamp":
            return {key: _at_time(field, ends) for key, ends in partitions.items()}
    listed = {(entry.topic, entry.partition): entry.offset for entry in wanted.offsets or ()}
    if missing := sorted(partitions.keys() - listed.keys()):
        return _invalid(
            f"{field}.offsets: an offset for every partition is required; missing: {_named(missing)}"
        )
    for key, offset in listed.items():
        if key not in partitions:
            return _invalid(
                f"{field}.offsets: {_named([key])} is not allowed: there is no such partition in spec.topics"
            )
        ends = partitions[key]
        if not ends.earliest <= offset <= ends.latest:
            return _invalid(
                f"{field}.offsets: {offset} of {_named([key])} is not allowed; "
                f"allowed: {ends.earliest} to {ends.latest}, which the partition has"
            )
    return listed


def _at_time(field: str, ends: Ends) -> int:
    found = ends.from_time if field.endswith("from") else ends.until_time
    return ends.latest if found is None else found  # no such record: the end offset


def _check_times(spec: str, begin: datetime | None, end: datetime | None) -> Problem | None:
    if begin is None or end is None or end >= begin:
        return None
    return _invalid(
        f"{spec}.until: {rfc3339(end)} is not allowed: it is before {spec}.from; allowed: {rfc3339(begin)} or later"
    )


def _checked(
    spec: str, begins: Mapping[Key, int], ends: Mapping[Key, int], partitions: Partitions, *, strict: bool
) -> tuple[OffsetRange, ...] | Problem:
    for key, first in sorted(begins.items()):
        if strict and ends[key] < first:
            return _invalid(
                f"{spec}.until: {ends[key]} of {_named([key])} is not allowed: it is before its {spec}.from; "
                f"allowed: {first} or above"
            )
    return _ranges(begins, {key: max(ends[key], first) for key, first in begins.items()}, partitions)


def _ranges(
    begins: Mapping[Key, int], ends: Mapping[Key, int], partitions: Partitions
) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(
            topic=key[0], partition=key[1], from_=first, until=ends[key], topic_id=partitions[key].topic_id
        )
        for key, first in sorted(begins.items())
    )


def _invalid(message: str) -> Problem:
    return Problem(Reason.INVALID_SPEC, message)


def _named(keys: list[Key]) -> str:
    return shown([f"{topic}-{partition}" for topic, partition in keys], MOST_NAMED)
