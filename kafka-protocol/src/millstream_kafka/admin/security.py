"""Administration of SCRAM credentials (KIP-554), access rules (KIP-140) and client quotas (KIP-546).

What the brokers refuse for one user, rule or entity is a `Refusal` in the result. Raises BrokerError if a broker does
not answer, and ApiError if a whole request is refused: SECURITY_DISABLED if the brokers have no authorizer,
CLUSTER_AUTHORIZATION_FAILED if this client lacks the right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..client.cluster import ClusterClient
from ..protocol import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
)
from ..protocol.alter_client_quotas import AlterClientQuotasRequest, QuotaAlteration, QuotaOperation
from ..protocol.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ..protocol.api import Api, Req, Res
from ..protocol.create_acls import AclCreation, CreateAclsRequest
from ..protocol.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ..protocol.describe_acls import DescribeAclsRequest
from ..protocol.describe_client_quotas import (
    DescribeClientQuotasRequest,
    QuotaComponent,
    QuotaEntity,
)
from ..protocol.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from ..protocol.errors import ApiError, ErrorCode
from ..scram_mechanism import ScramMechanism
from .access import Acl, AclFilter, QuotaChange, QuotaOf, ScramCredential, ScramUser
from .records import Refusal

_ANY_NAME = 2
"""A match in DescribeClientQuotas: every name and the default."""


class SecurityAdmin:
    """``timeout`` (s) is that of each request. A broker may describe a state from just before the last change."""

    def __init__(self, cluster: ClusterClient, timeout: float = 30.0) -> None:
        self.cluster = cluster
        self.timeout = timeout

    # --- SCRAM credentials ---

    async def scram_credentials(
        self, users: Collection[str] | None = None
    ) -> dict[str, dict[ScramMechanism, int]]:
        """Iterations by user and mechanism, of these users or all; users without a credential are left out."""
        asked = None if users is None else [UserName(name) for name in dict.fromkeys(users)]
        if asked == []:
            return {}
        response = await self._ask(
            describe_user_scram_credentials.API, DescribeUserScramCredentialsRequest(asked)
        )
        _check(response.error_code, response.error_message)
        found: dict[str, dict[ScramMechanism, int]] = {}
        for result in response.results:
            if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
                _check(result.error_code, result.error_message)
                found[result.user] = {
                    ScramMechanism(info.mechanism): info.iterations for info in result.credential_infos
                }
        return found

    async def alter_scram_credentials(
        self, upsertions: Iterable[ScramCredential] = (), deletions: Iterable[ScramUser] = ()
    ) -> dict[str, Refusal | None]:
        """Set and delete credentials, by user. A request names a user once: another mechanism takes another call."""
        request = AlterUserScramCredentialsRequest(
            [ScramCredentialDeletion(each.user, each.mechanism) for each in deletions],
            [
                ScramCredentialUpsertion(
                    each.user,
                    each.mechanism,
                    each.iterations,
                    each.salt,
                    each.salted_password,
                    each.previous_salted_password,
                    each.previous_valid_ms,
                )
                for each in upsertions
            ],
        )
        response = await self._ask(alter_user_scram_credentials.API, request)
        if any(result.error_code == ErrorCode.NOT_CONTROLLER for result in response.results):
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return {
            result.user: Refusal.of(result.error_code, result.error_message) for result in response.results
        }

    # --- access rules ---

    async def acls(self, wanted: AclFilter = AclFilter()) -> list[Acl]:  # noqa: B008 (immutable)
        """The rules that a filter matches; by default, all."""
        response = await self._ask(describe_acls.API, DescribeAclsRequest(*wanted))
        _check(response.error_code, response.error_message)
        return [
            Acl(
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for resource in response.resources
            for acl in resource.acls
        ]

    async def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, Refusal | None]:
        """Add rules; a rule that exists already is no error."""
        if not acls:
            return {}
        request = CreateAclsRequest([AclCreation(*acl) for acl in acls])
        response = await self._ask(create_acls.API, request)
        if len(response.results) != len(acls):
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"{len(response.results)} results for {len(acls)} rules"
            )
        return {
            acl: Refusal.of(result.error_code, result.error_message)
            for acl, result in zip(acls, response.results, strict=True)
        }

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """Delete all rules that any filter matches; returns them. Raises ApiError if one was not deleted."""
        if not filters:
            return []
        request = DeleteAclsRequest([DeleteAclsFilter(*each) for each in filters])
        response = await self._ask(delete_acls.API, request)
        deleted = []
        for result in response.filter_results:
            _check(result.error_code, result.error_message)
            for acl in result.matching_acls:
                _check(acl.error_code, acl.error_message)
                deleted.append(
                    Acl(
                        acl.resource_type,
                        acl.resource_name,
                        acl.pattern_type,
                        acl.principal,
                        acl.host,
                        acl.operation,
                        acl.permission_type,
                    )
                )
        return deleted

    # --- quotas ---

    async def quotas(self, *types: str) -> dict[QuotaOf, dict[str, float]]:
        """The quotas of all entities that have exactly parts of these types; without types, of all entities."""
        components = [QuotaComponent(each, _ANY_NAME, None) for each in types]
        request = DescribeClientQuotasRequest(components, strict=bool(types))
        response = await self._ask(describe_client_quotas.API, request)
        _check(response.error_code, response.error_message)
        return {
            _entity(entry.entity): {value.key: value.value for value in entry.values}
            for entry in response.entries or ()
        }

    async def alter_quotas(
        self, changes: Mapping[QuotaOf, QuotaChange], *, validate_only: bool = False
    ) -> dict[QuotaOf, Refusal | None]:
        if not changes:
            return {}
        entries = [
            QuotaAlteration(
                [QuotaEntity(kind, name) for kind, name in sorted(entity, key=lambda part: part[0])],
                [
                    *(QuotaOperation(key, value) for key, value in change.set.items()),
                    *(QuotaOperation(key, remove=True) for key in change.remove),
                ],
            )
            for entity, change in changes.items()
        ]
        response = await self._ask(alter_client_quotas.API, AlterClientQuotasRequest(entries, validate_only))
        return {
            _entity(entry.entity): Refusal.of(entry.error_code, entry.error_message)
            for entry in response.entries
        }

    async def _ask(self, api: Api[Req, Res], request: Req) -> Res:
        return await self.cluster.call_controller(api, request, timeout=self.timeout)


def _entity(parts: Iterable[Any]) -> QuotaOf:
    return frozenset((part.entity_type, part.entity_name) for part in parts)


def _check(code: int, message: str | None) -> None:
    if code:
        raise ApiError(ErrorCode.of(code), message)
