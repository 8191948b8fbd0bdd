"""What the client of a fetch session may read, by the rules of one moment."""

from __future__ import annotations

from typing import NamedTuple

from millstream_kafka.acl import AclOperation, ResourceType

from ..security.acl.authorizer import Authorizer
from ..security.session import ClientSession


class FetchRights(NamedTuple):
    authorizer: Authorizer
    client: ClientSession
    version: int
    """`Authorizer.version` at that moment."""

    @classmethod
    def now(cls, authorizer: Authorizer, client: ClientSession) -> FetchRights:
        return cls(authorizer, client, authorizer.version)

    def may_read(self, topic: str) -> bool:
        return self.authorizer.allows(self.client, AclOperation.READ, ResourceType.TOPIC, topic)
