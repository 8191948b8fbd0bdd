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

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from millstream_kafka.client import Security, parse_bootstrap
from millstream_process.logs import FORMATS

from .credentials import security_of
from .document import Document, Mode, Naming, OnGap, SourceField
from .fields import MirrorConfigError, decode, wrong
from .patterns import Pattern

GROUP_PREFIX = "millstream-mirror."
UNLIKELY = ("0", "5f1c8e0a-Q_zx.k7")
"""Names that only a pattern for every name matches."""
SET_ASIDE_SUFFIX = ".set-aside"
"""Ends the name of a topic of records that were set aside (identity/diverged_records.py)."""
_INTERNAL = re.compile(r"__.*")


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
        """The patterns of `groups.include` that match none of these groups, as they are written.

        A pattern that matches every name is no mistake while there are no groups yet.
        """
        selective = [pattern for pattern in self.groups_include if not all(map(pattern.matches, UNLIKELY))]
        return _unmatched(selective, groups)

    def includes_group(self, group: str) -> bool:
        """Whether to copy the positions of a consumer group; those of a mirror's own never are."""
        return not group.startswith(GROUP_PREFIX) and _matches(
            group, self.groups_include, self.groups_exclude
        )

    def includes_config(self, key: str) -> bool:
        """Whether a topic of the target is created with the source's setting."""
        return _matches(key, self.configs_include, self.configs_exclude)


def _unmatched(patterns: Sequence[Pattern], names: Collection[str]) -> list[str]:
    return [pattern.text for pattern in patterns if not any(map(pattern.matches, names))]


def _matches(name: str, include: tuple[Pattern, ...], exclude: tuple[Pattern, ...]) -> bool:
    included = any(pattern.matches(name) for pattern in include)
    return included and not any(pattern.matches(name) for pattern in exclude)


def parse(text: str) -> MirrorConfig:
    """Raises MirrorConfigError."""
    document = decode(text, Document)
    if document.log_format not in FORMATS:
        raise wrong("logFormat", document.log_format, " or ".join(FORMATS))
    host, port = _address("http", document.http)
    sources = _sources(document.sources)
    if document.groups.include and len(sources) > 1 and document.naming is Naming.SAME:
        raise MirrorConfigError(
            f"groups.include: with naming Same, {len(sources)} sources would share a group's position: expected naming"
            " Prefixed, or one source"
        )
    if document.rejoin is not UNSET and document.mode is not Mode.IDENTITY:
        raise MirrorConfigError(
            f"rejoin: with mode {document.mode} topics of the target are no replicas: expected Identity"
        )
    target = document.target
    return MirrorConfig(
        name=document.name,
        namespace=document.namespace,
        sources=sources,
        target=_bootstrap("target", target.bootstrap),
        target_security=security_of("target", target.tls, target.sasl),
        include=_patterns("topics.include", document.topics.include),
        exclude=_patterns("topics.exclude", document.topics.exclude),
        groups_include=_patterns("groups.include", document.groups.include),
        groups_exclude=_patterns("groups.exclude", document.groups.exclude),
        configs_include=_patterns("configs.include", document.configs.include),
        configs_exclude=_patterns("configs.exclude", document.configs.exclude),
        mode=document.mode,
        naming=document.naming,
        on_gap=document.on_gap,
        http_host=host,
        http_port=port,
        log_format=document.log_format,
        rejoin=document.rejoin.request_id if document.rejoin is not UNSET else "",
    )


def _sources(found: Sequence[SourceField]) -> tuple[Source, ...]:
    sources: list[Source] = []
    for index, each in enumerate(found):
        field = f"sources[{index}]"
        if any(each.name == other.name for other in sources):
            raise wrong(f"{field}.name", each.name, "a name that no other source has")
        sources.append(
            Source(
                each.name,
                _bootstrap(field, each.bootstrap),
                security_of(field, each.tls, each.sasl),
                each.max_bytes_per_second,
                each.rack,
            )
        )
    return tuple(sources)


def _bootstrap(field: str, value: str) -> str:
    try:
        parse_bootstrap(value)
    except ValueError:
        raise wrong(f"{field}.bootstrap", value, "HOST:PORT, or several with commas between") from None
    return value


def _address(field: str, value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise wrong(field, value, "HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _patterns(field: str, expressions: Sequence[str]) -> tuple[Pattern, ...]:
    patterns = []
    for index, expression in enumerate(expressions):
        try:
            patterns.append(Pattern(expression))
        except ValueError as error:
            raise wrong(f"{field}[{index}]", expression, f"a regular expression ({error})") from None
    return tuple(patterns)
