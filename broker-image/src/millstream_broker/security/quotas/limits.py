"""Which quota applies to a client: Kafka's order of precedence, for one kind of quota.

    1. users/<user>/clients/<client id>     5. users/<default>/clients/<default>
    2. users/<user>/clients/<default>       6. users/<default>
    3. users/<user>                         7. clients/<client id>
    4. users/<default>/clients/<client id>  8. clients/<default>

An entity takes part only if it has a value of this kind. The quota also decides who is counted together: all clients of
a user (3, 6), all users of a client id (7, 8), or each client id of each user by itself, even where the limit is a
default.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from ...coordination.entities import DEFAULT, Entity, Name

K = TypeVar("K")


class SensorKey(NamedTuple):
    """Clients whose use is added up."""

    user: str | None = None
    """None: whoever uses the client id."""
    client_id: str | None = None
    """None: all client ids of the user."""


class Limits:
    """The quotas of one kind."""

    __slots__ = ("_of_both", "_of_clients", "_of_ips", "_of_users")

    def __init__(self) -> None:
        self._of_both: dict[tuple[Name, Name], float] = {}
        self._of_users: dict[Name, float] = {}
        self._of_clients: dict[Name, float] = {}
        self._of_ips: dict[Name, float] = {}

    def __bool__(self) -> bool:
        return bool(self._of_both or self._of_users or self._of_clients or self._of_ips)

    def set(self, entity: Entity, value: float | None) -> None:
        """Set or remove the limit of an entity."""
        user, client_id, ip = entity
        if ip is not None:
            _set(self._of_ips, ip, value)
        elif user is None:
            _set(self._of_clients, client_id, value)
        elif client_id is None:
            _set(self._of_users, user, value)
        else:
            _set(self._of_both, (user, client_id), value)

    def of_client(self, user: str, client_id: str) -> tuple[SensorKey, float] | None:
        """The limit of a user's client, and with whom it shares it; None if it has none."""
        for name in (user, DEFAULT):
            if self._of_both and (value := self._of_client_of(name, client_id)) is not None:
                return SensorKey(user, client_id), value
            if (value := self._of_users.get(name)) is not None:
                return SensorKey(user), value
        if self._of_clients and (value := _own_or_default(self._of_clients, client_id)) is not None:
            return SensorKey(None, client_id), value
        return None

    def of_sensor(self, key: SensorKey) -> float | None:
        """The present limit of those who are counted together; None if they no longer are."""
        user, client_id = key
        found = self.of_client(user or "", client_id or "")
        return found[1] if found is not None and found[0] == key else None

    def of_ip(self, ip: str) -> float | None:
        """The limit of an address; None if it has none."""
        return _own_or_default(self._of_ips, ip)

    def _of_client_of(self, user: Name, client_id: str) -> float | None:
        value = self._of_both.get((user, client_id))
        return self._of_both.get((user, DEFAULT)) if value is None else value


def _own_or_default(limits: dict[Name, float], name: str) -> float | None:
    value = limits.get(name)
    return limits.get(DEFAULT) if value is None else value


def _set(limits: dict[K, float], key: K, value: float | None) -> None:
    if value is None:
        limits.pop(key, None)
    else:
        limits[key] = value
