"""The configuration file of `millstream-mirror`: JSON, every field checked before anything starts.

    {"name": "west-to-east", "namespace": "flights",
     "sources": [{"name": "west", "bootstrap": "host:9092"}], "target": {"bootstrap": "host:9092"},
     "topics": {"include": ["orders.*"], "exclude": []}, "groups": {"include": [".*"], "exclude": []},
     "mode": "Aggregate", "naming": "Same", "onGap": "SkipToEarliest", "http": "0.0.0.0:9404", "logFormat": "plain"}

An error names the field, its value and what is allowed:

    naming: "Both" is not allowed: expected Same or Prefixed
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from millstream_kafka.client import parse_bootstrap
from millstream_process.logs import FORMATS

GROUP_PREFIX = "millstream-mirror."
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,63}")
_INTERNAL = re.compile(r"__.*")


class MirrorConfigError(ValueError):
    """One line for people."""


class Naming(StrEnum):
    SAME = "Same"
    PREFIXED = "Prefixed"


class OnGap(StrEnum):
    """What to do where the source has deleted records before they were mirrored."""

    STOP = "Stop"
    SKIP_TO_EARLIEST = "SkipToEarliest"


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    bootstrap: str


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    name: str
    namespace: str
    sources: tuple[Source, ...]
    target: str
    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...]
    groups_include: tuple[re.Pattern[str], ...]
    groups_exclude: tuple[re.Pattern[str], ...]
    naming: Naming
    on_gap: OnGap
    http_host: str
    http_port: int
    log_format: str

    def group_of(self, source: Source) -> str:
        """The consumer group in the target that shares the source's partitions and holds their progress."""
        return f"{GROUP_PREFIX}{self.name}.{source.name}"

    def target_topic(self, source: Source, topic: str) -> str:
        return topic if self.naming is Naming.SAME else f"{source.name}.{topic}"

    def includes(self, topic: str) -> bool:
        """Whether to mirror a topic of a source; internal topics never are."""
        if _INTERNAL.fullmatch(topic):
            return False
        return _matches(topic, self.include, self.exclude)

    def includes_group(self, group: str) -> bool:
        """Whether to copy the positions of a consumer group; those of a mirror's own never are."""
        return not group.startswith(GROUP_PREFIX) and _matches(
            group, self.groups_include, self.groups_exclude
        )


def _matches(name: str, include: tuple[re.Pattern[str], ...], exclude: tuple[re.Pattern[str], ...]) -> bool:
    included = any(pattern.fullmatch(name) for pattern in include)
    return included and not any(pattern.fullmatch(name) for pattern in exclude)


def parse(text: str) -> MirrorConfig:
    """Raises MirrorConfigError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise MirrorConfigError(f"not JSON: {error}") from None
    fields = _object(
        "",
        data,
        {"name", "sources", "target"},
        {"namespace", "topics", "groups", "mode", "naming", "onGap", "http", "logFormat"},
    )
    topics = _object("topics", fields.get("topics", {}), set(), {"include", "exclude"})
    groups = _object("groups", fields.get("groups", {}), set(), {"include", "exclude"})
    mode = fields.get("mode", "Aggregate")
    if mode != "Aggregate":
        raise _wrong("mode", mode, "Aggregate")
    naming = fields.get("naming", Naming.SAME)
    if naming not in tuple(Naming):
        raise _wrong("naming", naming, "Same or Prefixed")
    on_gap = fields.get("onGap", OnGap.SKIP_TO_EARLIEST)
    if on_gap not in tuple(OnGap):
        raise _wrong("onGap", on_gap, "Stop or SkipToEarliest")
    log_format = fields.get("logFormat", FORMATS[0])
    if log_format not in FORMATS:
        raise _wrong("logFormat", log_format, " or ".join(FORMATS))
    host, port = _address("http", fields.get("http", "127.0.0.1:9404"))
    sources = _sources(fields["sources"])
    if groups.get("include") and len(sources) > 1 and naming == Naming.SAME:
        raise MirrorConfigError(
            f"groups.include: with naming Same, {len(sources)} sources would share a group's position: expected naming"
            " Prefixed, or one source"
        )
    return MirrorConfig(
        name=_name("name", fields["name"]),
        namespace=_text("namespace", fields.get("namespace", "")),
        sources=sources,
        target=_bootstrap("target", _object("target", fields["target"], {"bootstrap"}, {"name"})),
        include=_patterns("topics.include", topics.get("include", [".*"])),
        exclude=_patterns("topics.exclude", topics.get("exclude", [])),
        groups_include=_patterns("groups.include", groups.get("include", [])),
        groups_exclude=_patterns("groups.exclude", groups.get("exclude", [])),
        naming=Naming(naming),
        on_gap=OnGap(on_gap),
        http_host=host,
        http_port=port,
        log_format=log_format,
    )


def _sources(value: Any) -> tuple[Source, ...]:
    if not isinstance(value, list) or not value:
        raise _wrong("sources", value, "a list of at least one source")
    sources: list[Source] = []
    for index, each in enumerate(value):
        field = f"sources[{index}]"
        fields = _object(field, each, {"name", "bootstrap"}, set())
        source = Source(_name(f"{field}.name", fields["name"]), _bootstrap(field, fields))
        if any(source.name == other.name for other in sources):
            raise _wrong(f"{field}.name", source.name, "a name that no other source has")
        sources.append(source)
    return tuple(sources)


def _object(
    field: str, value: Any, required: Collection[str], optional: Collection[str]
) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(field or "the file", value, "an object")
    prefix = f"{field}." if field else ""
    allowed = sorted({*required, *optional})
    for name in value:
        if name not in allowed:
            raise MirrorConfigError(f"{prefix}{name}: unknown field: expected {', '.join(allowed)}")
    for name in sorted(required):
        if name not in value:
            raise MirrorConfigError(f"{prefix}{name}: missing")
    return value


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(field, value, "a string")
    return value


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _wrong(field, value, "1 to 63 letters, digits, '.', '_' or '-'")
    return value


def _bootstrap(field: str, fields: Mapping[str, Any]) -> str:
    value = _text(f"{field}.bootstrap", fields["bootstrap"])
    try:
        parse_bootstrap(value)
    except ValueError:
        raise _wrong(f"{field}.bootstrap", value, "HOST:PORT, or several with commas between") from None
    return value


def _address(field: str, value: Any) -> tuple[str, int]:
    host, _, port = _text(field, value).rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise _wrong(field, value, "HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _patterns(field: str, value: Any) -> tuple[re.Pattern[str], ...]:
    if not isinstance(value, list):
        raise _wrong(field, value, "a list of regular expressions")
    patterns = []
    for index, each in enumerate(value):
        try:
            patterns.append(re.compile(_text(f"{field}[{index}]", each)))
        except re.error as error:
            raise _wrong(f"{field}[{index}]", each, f"a regular expression ({error})") from None
    return tuple(patterns)


def _wrong(field: str, value: Any, allowed: str) -> MirrorConfigError:
    return MirrorConfigError(f"{field}: {json.dumps(value)} is not allowed: expected {allowed}")
