"""Requests to describe and alter quotas: Kafka's rules for entities and filters (KIP-546), and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ...coordination.entities import DEFAULT, Entity, Name
from .keys import OF_CLIENTS, OF_IPS, check, parse

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT_NAME, SPECIFIED = 0, 1, 2
"""How a component of a filter matches: this name, the default, or any."""

EntityNames = Mapping[str, str | None]
"""The names of an entity by type; None: the default."""


def entity_of(names: EntityNames) -> Entity:
    """Raises ApiError for an impossible entity."""
    if not names:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in names.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP in names:
        if len(names) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        _check_address(names[IP])
    return Entity(*(_name(names[kind]) if kind in names else None for kind in (USER, CLIENT_ID, IP)))


def names_of(entity: Entity) -> EntityNames:
    """The reverse of `entity_of`."""
    return {
        kind: None if name is DEFAULT else name
        for kind, name in zip((USER, CLIENT_ID, IP), entity, strict=True)
        if name is not None
    }


def changes_of(entity: Entity, ops: Iterable[tuple[str, float | None]]) -> dict[str, str | None]:
    """The new values by key, as they are stored; None: removed. Raises ApiError."""
    changes: dict[str, str | None] = {}
    is_ip = entity.ip is not None
    for key, value in ops:
        if key in changes:
            raise _invalid(f"Duplicate quota key {key} not updating quota for this entity {entity.path}")
        changes[key] = None if value is None else check(key, value, of_ip=is_ip)
    removable = OF_IPS if is_ip else OF_CLIENTS
    return {key: value for key, value in changes.items() if key in removable}


def changed(stored: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """An entity's configuration after a change; what is no quota stays."""
    merged = {**stored, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def values_of(entity: Entity, config: Mapping[str, str]) -> dict[str, float]:
    """The quotas in an entity's stored configuration, without unreadable ones."""
    values = {}
    for key in OF_CLIENTS if entity.ip is None else OF_IPS:
        if (text := config.get(key)) is not None:
            try:
                values[key] = parse(text)
            except ValueError:
                continue
    return values


class Filter:
    """Which entities a request is about."""

    __slots__ = ("_exact", "_is_strict", "_specified")

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, is_strict: bool) -> None:
        """A component is a type of entity, how it matches, and a name. Raises ApiError for an impossible filter."""
        self._exact: dict[str, str | None] = {}
        self._specified: set[str] = set()
        self._is_strict = is_strict
        for kind, match_type, match in components:
            self._add(kind, match_type, match)
        kinds = self._exact.keys() | self._specified
        if IP in kinds and len(kinds) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def _add(self, kind: str, match_type: int, match: str | None) -> None:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in self._exact or kind in self._specified:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        names = {EXACT: "EXACT", DEFAULT_NAME: "DEFAULT", SPECIFIED: "SPECIFIED"}
        if (name := names.get(match_type)) is None:
            raise _invalid(f"Unknown match type {match_type}")
        if match_type == EXACT:
            if match is None:
                raise _invalid(f"Request specified MATCH_TYPE_{name}, but set match string to null.")
        elif match is not None:
            raise _invalid(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")
        if match_type == SPECIFIED:
            self._specified.add(kind)
        else:
            self._exact[kind] = match

    def matches(self, entity: Entity) -> bool:
        names = names_of(entity)
        if self._is_strict and len(names) != len(self._exact) + len(self._specified):
            return False
        if not self._specified <= names.keys():
            return False
        return all(kind in names and names[kind] == name for kind, name in self._exact.items())


def _name(name: str | None) -> Name:
    return DEFAULT if name is None else name


def _check_address(address: str | None) -> None:
    if address is None:
        return
    try:
        canonical = str(ip_address(address))
    except ValueError:
        raise _invalid(
            f"{address} is not an IP address: quotas of addresses take no host names, because these may change."
        ) from None
    if canonical != address:
        raise _invalid(f"{address} is not the usual form of this address: use {canonical}.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
