"""The operator's requests about users: SCRAM credentials, access rules and quotas."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream_kafka.admin.access import QuotaOf, quota_of
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .connection import KafkaConnection
from .records import Acl, AclFilter, QuotaChange, Refusal, ScramCredential, ScramMechanism, ScramUser


class AccessRequests(KafkaConnection):
    """Raises NotAuthorized if the brokers refuse the operator itself."""

    def scram_users(self, names: Collection[str] | None) -> dict[str, dict[ScramMechanism, int]]:
        """Iterations by user and mechanism, of those of the users that have a credential; None for all users."""
        return self.call(lambda client: client.scram_credentials(names))

    def change_scram_users(
        self, upsertions: Collection[ScramCredential], deletions: Collection[ScramUser]
    ) -> dict[str, Refusal | None]:
        """Set and delete credentials. A credential that does not exist is no refusal."""
        found = self.call(lambda client: client.alter_scram_credentials(upsertions, deletions))
        gone = ErrorCode.RESOURCE_NOT_FOUND.name
        return {user: None if no is not None and no.error == gone else no for user, no in found.items()}

    def rules(self, principal: str | None = None) -> list[Acl] | None:
        """All access rules, or those of one principal; None if the brokers have no authorizer."""

        async def read(client: AdminClient) -> list[Acl] | None:
            try:
                return await client.acls(AclFilter(principal=principal))
            except ApiError as error:
                if error.code is ErrorCode.SECURITY_DISABLED:
                    return None
                raise

        return self.call(read)

    def create_rules(self, rules: Collection[Acl]) -> dict[Acl, Refusal | None]:
        wanted = list(rules)
        return self.call(lambda client: client.create_acls(wanted))

    def delete_rules(self, rules: Collection[Acl]) -> None:
        """Delete these rules and no others."""
        filters = [AclFilter.only(rule) for rule in rules]
        self.call(lambda client: client.delete_acls(filters))

    def user_quotas(self) -> dict[str, dict[str, float]]:
        """The quotas of each user that has any, whatever its client id."""
        found = self.call(lambda client: client.quotas("user"))
        return {
            name: quotas for entity, quotas in found.items() if (name := dict(entity)["user"]) is not None
        }

    def change_user_quotas(self, changes: Mapping[str, QuotaChange]) -> dict[str, Refusal | None]:
        wanted: dict[QuotaOf, QuotaChange] = {quota_of(user=name): each for name, each in changes.items()}
        found = self.call(lambda client: client.alter_quotas(wanted))
        return {dict(entity)["user"] or "": no for entity, no in found.items()}
