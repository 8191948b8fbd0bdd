"""Rules for topics that are a mirror's read-only replica (`millstream_kafka.mirror_source`).

Only the mirror writes to them, with MirrorAppend. Their setting is set when they are created, and can be deleted.
An ordinary topic becomes a replica in two steps: first it *rejoins* the source, and records that only it has are
truncated (MirrorTruncate); only then do mirrored records follow. A replica in service is never truncated: its own
producers' records, after a promotion, all follow the mirrored ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

from millstream_kafka.mirror_source import KEY, PROMOTED, REJOIN, REJOINED, requests_of
from millstream_kafka.protocol.errors import ApiError, ErrorCode

LARGEST_EPOCH = 1 << 30
"""Limit for mirrored batches: leaders in the target take epochs above it."""
EPOCHS_ABOVE = 1 << 20
"""Least distance of a leader epoch from those of the mirrored batches below it.

So a promotion, at any time, leaves the former source this many epochs before it can rejoin no more. A newly taken epoch
is at twice the distance or more, so that the source may elect as often before the target needs another one.
"""
LARGEST_OFFSET = 1 << 62
FURTHEST_START = 1 << 40
"""Greatest distance from the end of a replica's log to the start of the source's log."""


def check_start(partition: object, log_start: int, end: int) -> None:
    """Check the start of the source's log before a replica that ends at ``end`` follows it. Raises ApiError.

    The start may be beyond the end: then the source has deleted records before they were mirrored. A start that no
    source can have would use up the replica's offsets.
    """
    if log_start > min(end + FURTHEST_START, LARGEST_OFFSET):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{partition} ends at offset {end}: its source's log cannot start at {log_start}, more than"
            f" {FURTHEST_START} offsets later. Nothing is changed. If it does, delete the topic here: the mirror makes"
            " it anew",
        )


def check_change(before: Mapping[str, str], after: Mapping[str, str], named: Collection[str]) -> None:
    """Check a change of a topic's settings; ``named`` are the keys in the request.

    ApiError INVALID_CONFIG if it makes a replica of an existing topic, or promotes one, or makes one rejoin, without
    naming the setting: a broker with an older view would do that.
    """
    for key in (KEY, REJOINED, PROMOTED):
        if before.get(key, "") != after.get(key, "") and key not in named:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"The topic's {key} has changed since this broker last saw its settings, and the request does not name"
                " it. Nothing is changed: send the request again",
            )
    wanted = after.get(KEY, "")
    if wanted and not _may_become(before.get(KEY, ""), wanted):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{KEY} can be set only when a topic is created. An ordinary topic can rejoin a source (CLUSTERID/TOPICID"
            f"{REJOIN}), and one that rejoins it become its replica (without {REJOIN}). Deleting the setting makes the"
            " topic writable",
        )

    if wanted.endswith(REJOIN) and not before.get(KEY):
        _check_request(before.get(REJOINED, ""), after.get(REJOINED, ""))


def _check_request(last: str, present: str) -> None:
    """An ordinary topic rejoins once for each request: promoting it, or giving up, holds. Raises ApiError."""
    before, now = requests_of(last), requests_of(present)
    if not now:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{KEY}: an ordinary topic rejoins a source under a request: set {REJOINED} to its id at the same time",
        )
    if now[0] in before:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{KEY}: the topic was promoted, or given up, after request {now[0]} ({REJOINED}): it can rejoin under"
            " another one",
        )


def _may_become(was: str, wanted: str) -> bool:
    if wanted.endswith(REJOIN):
        return was in ("", wanted)
    return was in (wanted, wanted + REJOIN)


def check_rejoins(topic: str, actual: str, source: str) -> None:
    """Raises ApiError unless a topic with the setting ``actual`` rejoins ``source``."""
    if not actual.endswith(REJOIN):
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"Topic '{topic}' does not rejoin a source: it is "
            + (f"a replica of {actual} in service" if actual else "an ordinary topic, or was promoted"),
        )
    if actual != source:
        raise ApiError(
            ErrorCode.INCONSISTENT_TOPIC_ID, f"Topic '{topic}' is set to {actual}, not to {source}"
        )


def check_replaced(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check settings that replace all others.

    ApiError INVALID_CONFIG if they would promote a replica, or forget its requests, by omission.
    """
    effects = {
        KEY: "make the topic writable",
        REJOINED: "let a mirror make the topic read-only again",
        PROMOTED: "let an old request promote the topic again",
    }
    for key, effect in effects.items():
        if before.get(key) and key not in after:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"AlterConfigs replaces all settings, so it would delete {key} and {effect}: change single settings"
                " with IncrementalAlterConfigs, or name this one, too",
            )


def first_epoch(config: Mapping[str, str]) -> int:
    """The first leader epoch of a new partition: leaders of replicas have higher ones than their records."""
    return 2 * EPOCHS_ABOVE if config.get(KEY) else 0


def far_above(epoch: int) -> int:
    """A leader epoch above that of batches.

    At a random distance: leaders of another history of the coordination may have taken one above the same batches.
    """
    return epoch + 2 * EPOCHS_ABOVE + secrets.randbelow(EPOCHS_ABOVE)


def read_only(topic: str, source: str) -> ApiError:
    """The refusal of a client's change to a replica's records."""
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        f"Topic '{topic}' is a read-only mirror of {source}. To write to it, promote it: name it in spec.promote of its"
        f" MirrorMaker, or delete its setting {KEY}",
    )
