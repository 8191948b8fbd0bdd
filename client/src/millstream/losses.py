"""Which changes of a topic's configuration delete records that it has, or may; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from millstream.configs import Setting

LIMITS = ("retention.ms", "retention.bytes")
POLICY = "cleanup.policy"
SOURCE = "millstream.mirror.source"
OWNER = "millstream.topic.owner"
OF_BROKERS = {
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    ),
    "retention.bytes": (("log.retention.bytes", 1),),
    "cleanup.policy": (("log.cleanup.policy", 1),),
}
"""The brokers' keys whose values a topic has without its own, by precedence, and their units."""
_DELETES = {
    "retention.ms": "records older than {} ms are deleted",
    "retention.bytes": "records of a partition beyond {} bytes are deleted",
}


def losses(
    settings: Sequence[Setting],
    set_configs: Mapping[str, str],
    delete_configs: Sequence[str] = (),
    brokers: Sequence[Sequence[Setting]] = (),
) -> list[str]:
    """What is lost by a change, in words; empty if nothing is. ``settings``: those of the topic now; ``brokers``: those
    of each broker, whose defaults count after a reset. Without them any default may delete records."""
    now = {setting.key: setting.value or "" for setting in settings}
    return [
        *(words for key, value in set_configs.items() if (words := _lost(key, now.get(key, ""), value))),
        *_resets(settings, delete_configs, brokers),
    ]


def default_losses(
    settings: Sequence[Setting], set_configs: Mapping[str, str], delete_configs: Sequence[str] = ()
) -> list[str]:
    """What topics without settings of their own lose by a change of a broker's configuration, in words."""
    now = {setting.key: setting.value or "" for setting in settings}
    found = []
    for key, defaults in OF_BROKERS.items():
        if any(
            setting.own and setting.key == name and name in delete_configs
            for setting in settings
            for name, _ in defaults
        ):
            found.append(f"the default of {key} counts again, which may delete records")
            continue
        changed = [Setting(name, value, "", False) for name, value in {**now, **set_configs}.items()]
        if words := _lost(key, _default(key, settings) or "", _default(key, changed) or ""):
            found.append(f"in topics without {key} of their own, {words}")
    return found


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


def _resets(
    settings: Sequence[Setting], keys: Sequence[str], brokers: Sequence[Sequence[Setting]]
) -> Iterator[str]:
    """The losses by resets: the default of a broker may keep less."""
    for setting in settings:
        if not setting.own or setting.key not in keys or setting.key not in OF_BROKERS:
            continue
        defaults = {_default(setting.key, broker) for broker in brokers} or {None}
        if None in defaults:
            yield f"the brokers' default of {setting.key} counts, which may delete records"
            continue
        lost = {_lost(setting.key, setting.value or "", default or "") for default in defaults} - {""}
        yield from sorted(f"the brokers' default of {setting.key} counts: {words}" for words in lost)


def resets_a_limit(settings: Sequence[Setting], keys: Sequence[str]) -> bool:
    """Whether a reset of these keys may delete records, depending on the brokers' defaults."""
    return any(setting.own and setting.key in keys and setting.key in OF_BROKERS for setting in settings)


def _default(key: str, broker: Sequence[Setting]) -> str | None:
    """The value of a topic without its own; None if the broker does not show it."""
    values = {setting.key: setting.value for setting in broker}
    for name, unit in OF_BROKERS[key]:
        if value := values.get(name):
            return str(int(value) * unit) if unit > 1 and re.fullmatch(r"[0-9]+", value) else value
    return None


def owner(settings: Sequence[Setting], changed: Sequence[str] = ()) -> str:
    """Who else decides about the topic, in words; empty if nobody is known, or if the change is about the owner."""
    values = {setting.key: setting.value for setting in settings}
    if (source := values.get(SOURCE)) and SOURCE not in changed:
        return f"a mirror keeps it as the copy of {source}, and undoes changes"
    if (resource := values.get(OWNER)) and not {OWNER, SOURCE} & set(changed):
        return (
            f"the Topic resource {resource} has it: the operator, or the next `millstream local up`, brings back what"
            f" the resource names, so change that. If it no longer exists, reset {OWNER}"
        )
    return ""
