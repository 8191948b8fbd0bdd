"""AlterClientQuotas (key 49): quotas of users, client ids and addresses to set or remove (KIP-546).

v1 is flexible.
"""

from __future__ import annotations

from .api import Api
from .describe_client_quotas import QuotaEntity
from .schema import Struct, array, boolean, float64, int16, int32, string


class QuotaOperation(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class QuotaAlteration(Struct):
    entity: list[QuotaEntity] = array(QuotaEntity)
    ops: list[QuotaOperation] = array(QuotaOperation)


class AlterClientQuotasRequest(Struct):
    entries: list[QuotaAlteration] = array(QuotaAlteration)
    validate_only: bool = boolean()


class QuotaAlterationResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    entity: list[QuotaEntity] = array(QuotaEntity)


class AlterClientQuotasResponse(Struct):
    throttle_time_ms: int = int32()
    entries: list[QuotaAlterationResult] = array(QuotaAlterationResult)


API = Api(
    49,
    "AlterClientQuotas",
    (0, 1),
    flexible=1,
    request=AlterClientQuotasRequest,
    response=AlterClientQuotasResponse,
)
