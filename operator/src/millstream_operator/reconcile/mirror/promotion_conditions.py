"""The conditions of a MirrorMaker that its promotions decide; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...models import LastPromotion, MirrorMaker
from ...models.conditions import ConditionType, Reason
from ...models.problem import NewCondition, shown
from .promotion import MOST_NAMED, Promotion


def condition(
    mirror: MirrorMaker, last: LastPromotion | None, again: Sequence[str] = ()
) -> NewCondition | None:
    """The condition of a request that has ended; None if the spec has none.

    ``again`` are topics that it promoted and that are mirrored now, because they were deleted in the target.
    """
    if mirror.spec.promote is None or last is None or last.request_id != mirror.spec.promote.request_id:
        return None
    words = f"request {last.request_id}: {last.message or 'done'}"
    if last.state == "Done" and again:
        words = (
            f"request {last.request_id} is done, but these were deleted in the target, and are mirrored again:"
            f" {shown(again, MOST_NAMED)}: give the request another requestId to promote them"
        )
        return ConditionType.PROMOTED, False, Reason.MIRRORED_AGAIN, words
    if last.state == "Done":
        return ConditionType.PROMOTED, True, Reason.PROMOTED, words
    if last.state == "Refused":
        return ConditionType.PROMOTED, False, Reason.PROMOTION_REFUSED, words
    return ConditionType.PROMOTED, False, Reason.PROMOTING, f"request {last.request_id} runs"


def promoted_before(names: Collection[str]) -> NewCondition | None:
    """The condition if the spec requests nothing, but topics were promoted."""
    if not names:
        return None
    words = f"{shown(sorted(names), MOST_NAMED)}: promoted earlier, and not mirrored any more"
    return ConditionType.PROMOTED, True, Reason.PROMOTED_BEFORE, words


def ready(promotion: Promotion, names: Collection[str]) -> NewCondition | None:
    """The effect of promoted topics on ``Ready``, if any. ``names`` are topics that workers found promoted."""
    last = promotion.last
    if promotion.is_over and last is not None and last.state == "Done":
        words = "all topics are promoted, so nothing is mirrored; the MirrorMaker may be deleted"
        return ConditionType.READY, True, Reason.PROMOTED, words
    if promotion.is_over:
        return ConditionType.READY, False, Reason.PROMOTING, "all topics are being promoted"
    if names and (last is None or last.state in ("Refused", "Cancelled")) and not promotion.runs:
        words = (
            f"promoted in the target: {shown(sorted(names), MOST_NAMED)}; the mirror leaves such topics alone: add them"
            " to spec.topics.exclude to keep them, or delete them in the target to mirror them from their start"
        )
        return ConditionType.READY, False, Reason.TOPIC_PROMOTED, words
    return None
