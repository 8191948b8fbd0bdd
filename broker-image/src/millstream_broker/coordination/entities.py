"""Users, client ids and addresses that have configuration of their own: quotas, and the credentials of SCRAM.

    config/users/U               config/users/U/clients/C
    config/clients/C             config/ips/A

`<default>` in place of a name stands for all that have none of their own. Names of users and clients are encoded as
Kafka's `Sanitizer` does it, so any name is one name in a path.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from millstream_kafka.protocol.errors import ApiError, ErrorCode

MAX_PATH_BYTES = 4096
"""The longest path of an entity: a note must name it, and a request must not fill coordination by names."""


class Default(Enum):
    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
Name = str | Default | None


class Entity(NamedTuple):
    """A user, a client id, both, or an address. Names are plain text; None: not part of the entity."""

    user: Name = None
    client_id: Name = None
    ip: Name = None

    @property
    def path(self) -> str:
        """As in a note of a change. Raises ApiError for a name that no node can have."""
        if self.ip is not None:
            path = f"ips/{_encoded(self.ip, ':')}"
        elif self.user is None:
            path = f"clients/{_encoded(self.client_id)}"
        elif self.client_id is None:
            path = f"users/{_encoded(self.user)}"
        else:
            path = f"users/{_encoded(self.user)}/clients/{_encoded(self.client_id)}"
        if len(path) > MAX_PATH_BYTES:
            message = f"The name has {len(path)} bytes when it is encoded: {MAX_PATH_BYTES} are allowed."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        return path

    @classmethod
    def from_path(cls, path: str) -> Entity | None:
        """None unless the path is that of an entity, as Kafka writes it."""
        try:
            match path.split("/"):
                case ["users", user]:
                    entity = cls(user=_decoded(user))
                case ["users", user, "clients", client_id]:
                    entity = cls(user=_decoded(user), client_id=_decoded(client_id))
                case ["clients", client_id]:
                    entity = cls(client_id=_decoded(client_id))
                case ["ips", ip]:
                    entity = cls(ip=_decoded(ip))
                case _:
                    return None
            return entity if entity.path == path else None
        except (UnicodeDecodeError, ApiError):
            return None


def _encoded(name: Name, safe: str = "") -> str:
    if name is DEFAULT:
        return DEFAULT.value
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "A user, client id or address must not be empty.")
    if name in (".", ".."):  # which are no names in a path
        return name.replace(".", "%2E")
    return quote(name, safe=safe).replace("~", "%7E")


def _decoded(name: str) -> Name:
    return DEFAULT if name == DEFAULT.value else unquote(name, errors="strict")
