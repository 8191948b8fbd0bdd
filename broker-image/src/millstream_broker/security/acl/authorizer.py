"""Whether a client may do something: the part of the broker that handlers take.

`Authorizer` allows everything: the broker has it without `authorizer.class.name`. `AclAuthorizer` decides by access
rules, and remembers its decisions, until rules change. `super.users` and brokers of this cluster may do everything,
whatever the rules say: so no rule locks out the administrators.

`version` grows with each change of rules. Whoever keeps a decision, such as a long poll, compares it. All calls are
made on the loop.

A request is denied where `allows` or `check` says no: this is counted and audited, under the API whose handler has the
authorizer (`of_api`). `permits` only asks: what a list may show, or whether another right makes up for a missing one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Self

from millstream_kafka.acl import (
    ANY_PRINCIPAL,
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    AccessControlEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..audit.trail import AuditTrail
from ..session import ClientSession
from .rules import HARDCODED, Decision, Rules

log = logging.getLogger(__name__)
MOST_DECISIONS = 32_768
LONGEST_NAME = 256
"""Longest name whose decisions are remembered: clients choose names, of up to 32 KB."""

REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error for each type of resource."""


class Authorizer:
    """Allows everything to everybody."""

    is_enabled = False
    """Whether requests may be refused. If not, handlers skip their checks."""

    @property
    def version(self) -> int:
        return 0

    def of_api(self, api: str) -> Self:
        """The same authorizer, for the handler of an API."""
        return self

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each change of rules."""

    def allows(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a request may do this. If not, it is denied."""
        return True

    def permits(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """As `allows`, without a denial."""
        return True

    def permits_some(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether the operation is allowed on any resource of a type, whatever its name (KIP-679)."""
        return True

    def permits_on_cluster(self, session: ClientSession, operation: AclOperation) -> bool:
        return self.permits(session, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def deny(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """A request was denied, for want of this right or of another one."""

    def check(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """Raises ApiError, with the error of the resource's type, unless the operation is allowed."""
        if self.is_enabled and not self.allows(session, operation, resource_type, name):
            raise ApiError(REFUSALS[resource_type])

    def operations(self, session: ClientSession, resource_type: ResourceType, name: str) -> int:
        """The allowed operations, one bit each (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.permits(session, operation, resource_type, name)
        )

    def cluster_operations(self, session: ClientSession) -> int:
        """The allowed operations on the cluster; none without Describe, as in Kafka."""
        if not self.permits_on_cluster(session, AclOperation.DESCRIBE):
            return 0
        return self.operations(session, ResourceType.CLUSTER, CLUSTER_NAME)


class AclAuthorizer(Authorizer):
    """Decides by access rules."""

    is_enabled = True

    def __init__(
        self,
        super_users: Iterable[str] = (),
        *,
        allows_without_acl: bool = False,
        trail: AuditTrail | None = None,
    ) -> None:
        """`allows_without_acl`: everybody may use a resource for which there is no rule."""
        self._api = ""
        self._trail = AuditTrail() if trail is None else trail
        self.super_users = frozenset(super_users)
        self.allows_without_acl = allows_without_acl
        self.rules = Rules()
        self._decisions: dict[tuple[str, str, AclOperation, ResourceType, str | None], bool] = {}
        self._listeners: list[Callable[[], None]] = []
        self._is_locked_out = False
        """As last reported."""

    @property
    def version(self) -> int:
        return self.rules.version

    @property
    def locks_everybody_out(self) -> bool:
        """Whether nobody has the right to create rules."""
        if self.super_users:
            return False
        entries = self.rules.entries_of(ResourceType.CLUSTER)
        if not entries:
            return not self.allows_without_acl
        altering = [each for each in entries if each.operation in (AclOperation.ALTER, AclOperation.ALL)]
        is_denied = any(
            (each.principal, each.host, each.permission_type)
            == (ANY_PRINCIPAL, WILDCARD, PermissionType.DENY)
            for each in altering
        )
        return is_denied or all(each.permission_type is PermissionType.DENY for each in altering)

    def report_lock_out(self) -> None:
        """Log when nobody has the right to create rules any more."""
        if self.locks_everybody_out == self._is_locked_out:
            return
        self._is_locked_out = not self._is_locked_out
        if self._is_locked_out:
            log.warning(
                "no access rule lets anybody alter the cluster, and there is no super user, so nobody can create or"
                " delete a rule: set super.users to User:NAME, and restart the brokers"
            )

    def of_api(self, api: str) -> Self:
        found = copy(self)  # it shares rules and decisions
        found._api = api
        return found

    def on_change(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def replace(self, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> None:
        """Replace the rules of one pattern."""
        self.rules.replace(pattern, entries)
        self._changed()

    def replace_all(self, rules: Mapping[ResourcePattern, Iterable[AccessControlEntry]]) -> None:
        if self.rules.replace_all(rules):
            self._changed()

    def _changed(self) -> None:
        self._decisions.clear()
        self.rules.version += 1
        self.report_lock_out()
        for changed in self._listeners:
            changed()

    def allows(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        if self._decisions.get((session.principal, session.host, operation, resource_type, name)):
            return True
        if self.permits(session, operation, resource_type, name):
            return True
        self.deny(session, operation, resource_type, name)
        return False

    def deny(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        self._trail.denied(self._api, session, operation, resource_type, name)

    def permits(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        key = session.principal, session.host, operation, resource_type, name
        known = self._decisions.get(key)
        if known is None:
            known = self._is_super(session) or self._decide(session, operation, resource_type, name)
            self._remember(key, known)
        return known

    def permits_some(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        key = session.principal, session.host, operation, resource_type, None
        known = self._decisions.get(key)
        if known is None:
            known = self.permits(session, operation, resource_type, HARDCODED) or self.rules.allows_some(
                session.principal, session.host, operation, resource_type
            )
            self._remember(key, known)
        return known

    def _is_super(self, session: ClientSession) -> bool:
        return session.peer_broker is not None or session.principal in self.super_users

    def _decide(
        self, session: ClientSession, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        decision = self.rules.decide(session.principal, session.host, operation, resource_type, name)
        return decision is Decision.ALLOWED or (decision is Decision.NO_ACL and self.allows_without_acl)

    def _remember(self, key: tuple[str, str, AclOperation, ResourceType, str | None], decision: bool) -> None:
        if key[-1] is not None and len(key[-1]) > LONGEST_NAME:
            return
        if len(self._decisions) >= MOST_DECISIONS:
            self._decisions.clear()
        self._decisions[key] = decision
