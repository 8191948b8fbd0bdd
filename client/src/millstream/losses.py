"""Which changes of a topic's configuration delete records that it has, or may; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from millstream.configs import Setting

LIMITS = ("retention.ms", "retention.bytes")
POLICY = "cleanup.policy"
SOURCE = "millstream.mirror.source"
_DELETES = {
    "retention.ms": "records older than {} ms are deleted",
    "retention.bytes": "records of a partition beyond {} bytes are deleted",
}


def losses(
    settings: Sequence[Setting], set_configs: Mapping[str, str], delete_configs: Sequence[str] = ()
) -> list[str]:
    """What is lost by a change, in words; empty if nothing is. ``settings``: those of the topic now."""
    now = {one.key: one.value or "" for one in settings}
    return [
        *(words for key, value in set_configs.items() if (words := _lost(key, now.get(key, ""), value))),
        *_resets(settings, delete_configs),
    ]


def _lost(key: str, before: str, after: str) -> str:
    if key == POLICY:
        added = _policies(after) - _policies(before)
        if "compact" in added:
            return "all but the last record of each key may be deleted"
        return "old records are deleted" if "delete" in added else ""
    if key not in LIMITS or not re.fullmatch(r"\s*[+-]?[0-9]+\s*", after):
        return ""
    limit = int(after)
    unlimited = not re.fullmatch(r"-?[0-9]+", before) or int(before) < 0
    return _DELETES[key].format(limit) if limit >= 0 and (unlimited or limit < int(before)) else ""


def _policies(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def _resets(settings: Sequence[Setting], keys: Sequence[str]) -> Iterator[str]:
    """A reset brings the brokers' default, which may be less."""
    for one in settings:
        if one.own and one.key in keys and one.key in (*LIMITS, POLICY):
            yield f"the brokers' default of {one.key} counts, which may delete records"


def owner(settings: Sequence[Setting]) -> str:
    """Who else decides about the topic, in words; empty if nobody is known."""
    source = next((one.value for one in settings if one.key == SOURCE), None)
    return f"a mirror keeps it as the copy of {source}, and undoes changes" if source else ""
