"""Carries out promotions: records the request, deletes the topics' settings, reads the recovery point.

promotion.py plans. The process may end between any two of these steps; the next one continues. Nothing here needs the
source or a worker; both make the recovery point more exact.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from ...kafka.admin import KafkaAdmin
from ...kafka.mirror_records import group_of, time_of
from ...kafka.mirrored import mirrored_ends, notes_of, target_topics
from ...kafka.records import LATEST, AdminError, Partition
from ...models import Cluster, LastPromotion, MirrorMaker, Promote
from ...models.conditions import ConditionType, Reason
from ...models.mirror import MirrorTarget
from ...models.mirror_reports import WorkerReport
from ...models.problem import PAUSED, Problem, conditions_with, is_paused, shown
from ...state.cache import key_for
from ...state.context import MirrorParts
from ...state.status import write_status
from ..common.reference import clusters_of_id, find_cluster, may_refer, not_allowed
from .promotion import (
    GIVE_UP,
    MOST_NAMED,
    Observed,
    Plan,
    Promotion,
    Refused,
    SourceEnd,
    begun,
    cancelled,
    ended,
    is_over,
    plan,
    prefix_of,
    refusal,
    requested,
    running,
)
from .promotion_conditions import condition

AT_ONCE = 100
"""Topics promoted by one request."""
FOR_A_LEADER = timedelta(seconds=30)
"""From the request on. After that, the recovery point lacks partitions without a leader."""
WITHDRAWN = "spec.promote no longer has the request; topics that it had promoted stay promoted"

logger = logging.getLogger(__name__)


def advance(
    services: MirrorParts,
    mirror: MirrorMaker,
    reports: Callable[[], Sequence[WorkerReport]],
    *,
    late: bool = False,
    workers: bool = True,
) -> Promotion:
    """Let a promotion continue as far as it can. Blocking.

    ``reports`` returns the workers' reports, which come late or never; so it is called only after topics are promoted.
    ``late``: workers may have created more replicas since all topics were promoted. ``workers``: whether some may still
    run.
    """
    found = _go_on(services, mirror, reports, late=late, workers=workers)
    if not found.runs:
        services.outside.forget(key_for(mirror))
    return found


def _go_on(
    services: MirrorParts,
    mirror: MirrorMaker,
    reports: Callable[[], Sequence[WorkerReport]],
    *,
    late: bool,
    workers: bool,
) -> Promotion:
    promote, last = requested(mirror), mirror.status.last_promotion
    is_done = promote is None and last is not None and late and is_over(mirror)
    if is_done and last is not None:
        promote = Promote(request_id=last.request_id)
    if (begun_one := running(mirror)) is not None and promote is None:
        last = cancelled(begun_one, WITHDRAWN, services.now())
    if mirror.spec.promote is None:
        return Promotion(mirror, last)
    target = _admin(services, mirror, mirror.spec.target)
    if promote is None:
        return Promotion(mirror, last, condition(mirror, last, _again(last, target, reports)))
    request = f"request {promote.request_id}"
    if is_done and (is_paused(mirror) or isinstance(target, Problem)):
        return Promotion(mirror, last, condition(mirror, last))
    if is_paused(mirror):
        return _waits(mirror, PAUSED[2], f"{request}: {PAUSED[3]}")
    if isinstance(target, Problem):
        return _waits(mirror, target.reason, f"{request}: target: {target.message}")
    try:
        return _advance(services, mirror, promote, target, reports, workers=workers)
    except AdminError as error:
        return (
            Promotion(mirror, last, condition(mirror, last))
            if is_done
            else _unreachable(mirror, promote, error)
        )


def _again(
    last: LastPromotion | None, target: KafkaAdmin | Problem, reports: Callable[[], Sequence[WorkerReport]]
) -> list[str]:
    """Promoted topics that were deleted in the target and recreated by workers; none if that is unknown."""
    ids = {one.topic: one.topic_id for one in (last.topics if last is not None else ())}
    if not ids or isinstance(target, Problem):
        return []
    mirrored = {
        name for report in reports() for source in report.sources for name in source.topic_names or ()
    }
    try:
        found = target_topics(target, sorted(mirrored & ids.keys()))
    except AdminError:
        return []
    return sorted(name for name, topic in found.items() if topic.source and topic.topic_id != ids[name])


def _advance(
    services: MirrorParts,
    mirror: MirrorMaker,
    promote: Promote,
    target: KafkaAdmin,
    reports: Callable[[], Sequence[WorkerReport]],
    *,
    workers: bool,
) -> Promotion:
    if (forbidden := _forbidden(services, mirror, target)) is not None:
        words = f"request {promote.request_id}: target: {forbidden.message}"
        return _waits(mirror, forbidden.reason, words)
    before = mirror.status.last_promotion
    is_new = before is None or before.request_id != promote.request_id or before.state == "Cancelled"
    seen = _observe(services, mirror, target, workers=workers)
    planned = plan(mirror, promote, seen)
    if before is not None and not is_new and before.state == "Done" and not _waiting(planned):
        return Promotion(mirror, before, condition(mirror, before), observed=True)
    if isinstance(planned, Refused):
        last = refusal(promote.request_id, planned.message, services.now())
        return Promotion(mirror, last, condition(mirror, last))
    if planned.rejoining:
        words = f"request {promote.request_id}: waits until these have rejoined their source"
        names = shown(planned.rejoining, MOST_NAMED)
        return _waits(mirror, Reason.PROMOTING, f"{words}: {names}; {GIVE_UP}")
    last = begun(promote, planned, before, services.now())
    if is_new:
        promoted = condition(mirror, last)
        conditions = conditions_with(mirror, *((promoted,) if promoted else ()), now=services.now())
        status = msgspec.structs.replace(mirror.status, last_promotion=last, conditions=conditions)
        if not write_status(services, mirror, status):
            # Another writer has changed the status: the next reconcile starts from it.
            return _waits(mirror, Reason.PROMOTING, f"request {promote.request_id} begins")
        mirror = msgspec.structs.replace(mirror, status=status)
    try:
        return _promote(
            services,
            mirror,
            promote,
            planned,
            seen,
            target,
            reports,
            last.time,
            resumed=not is_new,
        )
    except AdminError as error:
        return _unreachable(mirror, promote, error)


def _forbidden(services: MirrorParts, mirror: MirrorMaker, target: KafkaAdmin) -> Problem | None:
    """Why the MirrorMaker may not promote there, if its target is the address of a Cluster. Raises AdminError.

    The operator reaches every Cluster of its own, also one that refuses the namespace's pods.
    """
    if mirror.spec.target.cluster_ref is not None:
        return None
    clusters = clusters_of_id(services, target.cluster_id())
    if not clusters or any(may_refer(cluster, mirror.namespace) for cluster in clusters):
        return None
    return not_allowed(clusters[0], mirror.namespace)


def _waiting(planned: Plan | Refused) -> bool:
    return isinstance(planned, Plan) and bool(planned.waiting)


def _promote(
    services: MirrorParts,
    mirror: MirrorMaker,
    promote: Promote,
    planned: Plan,
    seen: Observed,
    target: KafkaAdmin,
    reports: Callable[[], Sequence[WorkerReport]],
    begun_at: datetime,
    *,
    resumed: bool,
) -> Promotion:
    refused: dict[str, str] = {}
    waiting = sorted(planned.waiting)
    for first in range(0, len(waiting), AT_ONCE):
        some = waiting[first : first + AT_ONCE]
        answers = target.change_configs(
            {name: planned.waiting[name].promotion(promote.request_id) for name in some}
        )
        refused |= {name: str(answers.get(name) or "no answer") for name in some if answers.get(name, 1)}
    logger.info(
        "%s: request %s: promoted %s", key_for(mirror), promote.request_id, shown(waiting, MOST_NAMED)
    )
    there = target_topics(target, list(planned.topics))
    gone = sorted(
        name
        for name, topic in planned.topics.items()
        if name not in there or there[name].topic_id != topic.topic_id
    )
    left = [f"{name}: {why}" for name, why in sorted(refused.items()) if name not in gone]
    if left:
        words = f"request {promote.request_id}: the target refuses to promote {shown(left, MOST_NAMED)}"
        return _waits(mirror, Reason.REFUSED, words)
    kept = {name: topic for name, topic in planned.topics.items() if name not in gone}
    found = mirrored_ends(target, list(kept))
    if found.pending:
        words = (
            f"request {promote.request_id}: waiting for these leaders to apply it: {_named(found.pending)}"
        )
        return _waits(mirror, Reason.PROMOTING, words)
    if found.leaderless and services.now() - begun_at < FOR_A_LEADER:
        words = f"request {promote.request_id}: waits for a leader of {_named(found.leaderless)}"
        return _waits(mirror, Reason.PROMOTING, f"{words}, to read where mirrored records end")
    done = Plan(
        {name: topic for name, topic in kept.items() if name in planned.waiting},
        {name: topic for name, topic in kept.items() if name in planned.done},
        planned.origins,
        [*planned.gone, *gone],
    )
    source_ends = _source_ends(services, mirror, done, seen, reports())
    promoted = sorted(done.topics if resumed else done.waiting)
    last = ended(promote, done, promoted, found.ends, source_ends, services.now())
    return Promotion(mirror, last, condition(mirror, last), observed=True)


def _observe(services: MirrorParts, mirror: MirrorMaker, target: KafkaAdmin, *, workers: bool) -> Observed:
    """Read the topics first: a later note may be about a newer topic, which the topic's id shows."""
    topics = target_topics(target, None)
    groups = {group_of(mirror.name, source.name): source.name for source in mirror.spec.sources}
    notes = notes_of(target, list(groups))
    clusters = {}
    for source in mirror.spec.sources:
        if source.cluster_ref is not None:
            found = find_cluster(services, mirror.namespace, source.cluster_ref)
            if isinstance(found, Cluster) and found.status.cluster_id:
                clusters[source.name] = found.status.cluster_id
    return Observed(topics, {source: notes[group] for group, source in groups.items()}, clusters, workers)


def _source_ends(
    services: MirrorParts,
    mirror: MirrorMaker,
    planned: Plan,
    seen: Observed,
    reports: Sequence[WorkerReport],
) -> dict[Partition, SourceEnd]:
    """The ends of the source's logs by partition of the target: read now, else from the workers' last notes."""
    found: dict[Partition, SourceEnd] = {}
    for source in mirror.spec.sources:
        topics = {
            name: planned.origins[name].topic_id
            for name in planned.topics
            if planned.origins[name].source in (source.name, "")
        }
        if not topics:
            continue
        noted = seen.notes.get(source.name, {})
        known_at = _seen_at(source.name, reports)
        for where, note in noted.items():
            if where.topic in topics and note.source_topic == topics[where.topic] and note.source_end >= 0:
                found[where] = SourceEnd(note.source_end, max(time_of(note.seen_ms), known_at))
        admin = _admin(services, mirror, source)
        if not isinstance(admin, Problem):
            with contextlib.suppress(AdminError):
                found |= _read_ends(admin, topics, prefix_of(mirror, source))
    return found


def _seen_at(source: str, reports: Sequence[WorkerReport]) -> datetime:
    """The time up to which all workers knew the ends of a source's logs."""
    times = [one.seen_ms for report in reports for one in report.sources if one.name == source and one.topics]
    return time_of(min(times, default=0))


def _read_ends(admin: KafkaAdmin, topics: Mapping[str, str], prefix: str) -> dict[Partition, SourceEnd]:
    """``topics`` maps a name in the target to the id of the source's topic. Raises AdminError."""
    identities = admin.identities([name.removeprefix(prefix) for name in topics])
    same = {
        own: name
        for name, topic_id in topics.items()
        if (own := name.removeprefix(prefix)) in identities and identities[own].topic_id == topic_id
    }
    places = [Partition(own, number) for own in same for number in range(identities[own].partitions)]
    ends = admin.led_offsets(dict.fromkeys(places, LATEST))
    return {Partition(same[where.topic], where.partition): SourceEnd(end) for where, end in ends.items()}


def _admin(services: MirrorParts, mirror: MirrorMaker, place: MirrorTarget) -> KafkaAdmin | Problem:
    if place.cluster_ref is not None:
        cluster = find_cluster(services, mirror.namespace, place.cluster_ref)
        return cluster if isinstance(cluster, Problem) else services.brokers_of(cluster)
    if place.tls is not None or place.sasl is not None:
        return Problem(Reason.CREDENTIALS_MISSING, "the operator has no credentials")
    return services.outside.of(key_for(mirror)).at(place.bootstrap or "")


def _unreachable(mirror: MirrorMaker, promote: Promote, error: AdminError) -> Promotion:
    return _waits(mirror, Reason.TARGET_UNREACHABLE, f"request {promote.request_id}: target: {error}")


def _waits(mirror: MirrorMaker, reason: Reason, words: str) -> Promotion:
    return Promotion(mirror, mirror.status.last_promotion, (ConditionType.PROMOTED, False, reason, words))


def _named(partitions: Iterable[Partition]) -> str:
    return shown([f"{partition.topic}-{partition.partition}" for partition in sorted(partitions)], MOST_NAMED)
