"""The configuration file of `millstream-mirror`: JSON, every field checked before anything starts.

    {"name": "west-to-east", "namespace": "flights",
     "sources": [{"name": "west", "bootstrap": "host:9092"}], "target": {"bootstrap": "host:9092"},
     "topics": {"include": ["orders.*"], "exclude": []}, "groups": {"include": [".*"], "exclude": []},
     "configs": {"include": [".*"], "exclude": []},
     "mode": "Aggregate", "naming": "Same", "onGap": "SkipToEarliest", "http": ":9404", "logFormat": "plain"}

An error names the field, its value and what is allowed:

    naming: "Both" is not allowed: expected Same or Prefixed

A source and the target may have `tls` and `sasl` (credentials.py), a source `maxBytesPerSecond` and `rack`. With mode
Identity, `"rejoin": {"requestId": "2026-11-25"}` makes existing topics of the target replicas (identity/resync.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from millstream_kafka.client import Security, parse_bootstrap
from millstream_kafka.mirror_source import REQUEST
from millstream_process.logs import FORMATS

from .credentials import security_of
from .fields import MirrorConfigError, a_text, an_object, wrong
from .patterns import Pattern

MIN_LIMIT = 1024
GROUP_PREFIX = "millstream-mirror."
SET_ASIDE_SUFFIX = ".set-aside"
"""Ends the name of a topic of records that were set aside (identity/diverged_records.py)."""
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,63}")
_INTERNAL = re.compile(r"__.*")


class Naming(StrEnum):
    SAME = "Same"
    PREFIXED = "Prefixed"


class Mode(StrEnum):
    AGGREGATE = "Aggregate"
    IDENTITY = "Identity"
    """Topics of the target are read-only replicas of the source's: equal batches at equal offsets."""


class OnGap(StrEnum):
    """How to continue if the source has deleted records before they were mirrored."""

    STOP = "Stop"
    SKIP_TO_EARLIEST = "SkipToEarliest"


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    bootstrap: str
    security: Security | None = None
    max_bytes_per_second: int | None = None
    """For all workers together; None means no limit."""
    rack: str = ""
    """The workers' rack, by the source's names; empty if unknown."""


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    name: str
    namespace: str
    sources: tuple[Source, ...]
    target: str
    target_security: Security | None
    include: tuple[Pattern, ...]
    exclude: tuple[Pattern, ...]
    groups_include: tuple[Pattern, ...]
    groups_exclude: tuple[Pattern, ...]
    configs_include: tuple[Pattern, ...]
    configs_exclude: tuple[Pattern, ...]
    mode: Mode
    naming: Naming
    on_gap: OnGap
    http_host: str
    http_port: int
    log_format: str
    rejoin: str = ""
    """The request under which existing topics of the target become replicas; empty: none do."""

    def group_of(self, source: Source) -> str:
        """The consumer group in the target that shares the source's partitions and holds their progress."""
        return f"{GROUP_PREFIX}{self.name}.{source.name}"

    def target_topic(self, source: Source, topic: str) -> str:
        return topic if self.naming is Naming.SAME else f"{source.name}.{topic}"

    def includes(self, topic: str) -> bool:
        """Whether to mirror a topic of a source.

        Internal topics never are; nor, with mode Identity, records that one cluster set aside: the other may need a
        topic of that name for its own.
        """
        if _INTERNAL.fullmatch(topic) or (self.mode is Mode.IDENTITY and topic.endswith(SET_ASIDE_SUFFIX)):
            return False
        return _matches(topic, self.include, self.exclude)

    def selects_target(self, source: Source) -> Callable[[str], bool]:
        """A function that says whether a topic of the target is the copy of a selected topic of this source."""
        prefix = self.target_topic(source, "")
        return lambda name: name.startswith(prefix) and self.includes(name.removeprefix(prefix))

    def unmatched(self, topics: Collection[str]) -> list[str]:
        """The patterns of `topics.include` that match none of these names, as they are written."""
        return _unmatched(self.include, topics)

    def unmatched_groups(self, groups: Collection[str]) -> list[str]:
        """The patterns of `groups.include` that match none of these groups, as they are written."""
        return _unmatched(self.groups_include, groups)

    def includes_group(self, group: str) -> bool:
        """Whether to copy the positions of a consumer group; those of a mirror's own never are."""
        return not group.startswith(GROUP_PREFIX) and _matches(
            group, self.groups_include, self.groups_exclude
        )

    def includes_config(self, key: str) -> bool:
        """Whether a topic of the target is created with the source's setting."""
        return _matches(key, self.configs_include, self.configs_exclude)


def _unmatched(patterns: tuple[Pattern, ...], names: Collection[str]) -> list[str]:
    return [pattern.text for pattern in patterns if not any(map(pattern.matches, names))]


def _matches(name: str, include: tuple[Pattern, ...], exclude: tuple[Pattern, ...]) -> bool:
    included = any(pattern.matches(name) for pattern in include)
    return included and not any(pattern.matches(name) for pattern in exclude)


def parse(text: str) -> MirrorConfig:
    """Raises MirrorConfigError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise MirrorConfigError(f"not JSON: {error}") from None
    fields = an_object(
        "",
        data,
        {"name", "sources", "target"},
        {
            "namespace",
            "topics",
            "groups",
            "configs",
            "mode",
            "naming",
            "onGap",
            "http",
            "logFormat",
            "rejoin",
        },
    )
    topics = an_object("topics", fields.get("topics", {}), set(), {"include", "exclude"})
    groups = an_object("groups", fields.get("groups", {}), set(), {"include", "exclude"})
    configs = an_object("configs", fields.get("configs", {}), set(), {"include", "exclude"})
    mode = fields.get("mode", Mode.AGGREGATE)
    if mode not in tuple(Mode):
        raise wrong("mode", mode, "Aggregate or Identity")
    naming = fields.get("naming", Naming.SAME)
    if naming not in tuple(Naming):
        raise wrong("naming", naming, "Same or Prefixed")
    on_gap = fields.get("onGap", OnGap.SKIP_TO_EARLIEST)
    if on_gap not in tuple(OnGap):
        raise wrong("onGap", on_gap, "Stop or SkipToEarliest")
    log_format = fields.get("logFormat", FORMATS[0])
    if log_format not in FORMATS:
        raise wrong("logFormat", log_format, " or ".join(FORMATS))
    host, port = _address("http", fields.get("http", "127.0.0.1:9404"))
    sources = _sources(fields["sources"])
    target = an_object("target", fields["target"], {"bootstrap"}, {"name", "tls", "sasl"})
    if groups.get("include") and len(sources) > 1 and naming == Naming.SAME:
        raise MirrorConfigError(
            f"groups.include: with naming Same, {len(sources)} sources would share a group's position: expected naming"
            " Prefixed, or one source"
        )
    return MirrorConfig(
        name=_name("name", fields["name"]),
        namespace=a_text("namespace", fields.get("namespace", "")),
        sources=sources,
        target=_bootstrap("target", target),
        target_security=security_of("target", target),
        include=_patterns("topics.include", topics.get("include", [".*"])),
        exclude=_patterns("topics.exclude", topics.get("exclude", [])),
        groups_include=_patterns("groups.include", groups.get("include", [])),
        groups_exclude=_patterns("groups.exclude", groups.get("exclude", [])),
        configs_include=_patterns("configs.include", configs.get("include", [".*"])),
        configs_exclude=_patterns("configs.exclude", configs.get("exclude", [])),
        mode=Mode(mode),
        naming=Naming(naming),
        on_gap=OnGap(on_gap),
        http_host=host,
        http_port=port,
        log_format=log_format,
        rejoin=_rejoin(fields["rejoin"], mode) if "rejoin" in fields else "",
    )


def _rejoin(value: Any, mode: str) -> str:
    found = an_object("rejoin", value, {"requestId"}, set())
    request_id = found["requestId"]
    if not isinstance(request_id, str) or not REQUEST.fullmatch(request_id):
        raise wrong("rejoin.requestId", request_id, "1 to 63 letters, digits, '.', '_' or '-'")
    if mode != Mode.IDENTITY:
        raise MirrorConfigError(
            f"rejoin: with mode {mode} topics of the target are no replicas: expected Identity"
        )
    return request_id


def _sources(value: Any) -> tuple[Source, ...]:
    if not isinstance(value, list) or not value:
        raise wrong("sources", value, "a list of at least one source")
    sources: list[Source] = []
    for index, each in enumerate(value):
        field = f"sources[{index}]"
        fields = an_object(field, each, {"name", "bootstrap"}, {"tls", "sasl", "maxBytesPerSecond", "rack"})
        source = Source(
            _name(f"{field}.name", fields["name"]),
            _bootstrap(field, fields),
            security_of(field, fields),
            _limit(f"{field}.maxBytesPerSecond", fields.get("maxBytesPerSecond")),
            a_text(f"{field}.rack", fields.get("rack", "")),
        )
        if any(source.name == other.name for other in sources):
            raise wrong(f"{field}.name", source.name, "a name that no other source has")
        sources.append(source)
    return tuple(sources)


def _limit(field: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < MIN_LIMIT):
        raise wrong(field, value, f"{MIN_LIMIT} or more")
    return value


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise wrong(field, value, "1 to 63 letters, digits, '.', '_' or '-'")
    return value


def _bootstrap(field: str, fields: Mapping[str, Any]) -> str:
    value = a_text(f"{field}.bootstrap", fields["bootstrap"])
    try:
        parse_bootstrap(value)
    except ValueError:
        raise wrong(f"{field}.bootstrap", value, "HOST:PORT, or several with commas between") from None
    return value


def _address(field: str, value: Any) -> tuple[str, int]:
    host, _, port = a_text(field, value).rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise wrong(field, value, "HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _patterns(field: str, value: Any) -> tuple[Pattern, ...]:
    if not isinstance(value, list):
        raise wrong(field, value, "a list of regular expressions")
    patterns = []
    for index, each in enumerate(value):
        try:
            patterns.append(Pattern(a_text(f"{field}[{index}]", each)))
        except ValueError as error:
            raise wrong(f"{field}[{index}]", each, f"a regular expression ({error})") from None
    return tuple(patterns)
