"""DescribeClientQuotas (key 48): the quotas of users, client ids and addresses (KIP-546).

v1 is flexible.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, float64, int8, int16, int32, string


class QuotaComponent(Struct):
    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable=0, default=None)


class DescribeClientQuotasRequest(Struct):
    components: list[QuotaComponent] = array(QuotaComponent)
    strict: bool = boolean()


class QuotaEntity(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable=0, default=None)


class QuotaValue(Struct):
    key: str = string()
    value: float = float64()


class QuotaEntry(Struct):
    entity: list[QuotaEntity] = array(QuotaEntity)
    values: list[QuotaValue] = array(QuotaValue)


class DescribeClientQuotasResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    entries: list[QuotaEntry] | None = array(QuotaEntry, nullable=0)


API = Api(
    48,
    "DescribeClientQuotas",
    (0, 1),
    flexible=1,
    request=DescribeClientQuotasRequest,
    response=DescribeClientQuotasResponse,
)
