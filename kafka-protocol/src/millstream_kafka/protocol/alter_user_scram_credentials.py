"""AlterUserScramCredentials (key 51): SCRAM credentials of users to set or delete (KIP-554).

v0 is flexible. Tags 10000 and 10001 are Millstream's; Kafka ignores them.
"""

from __future__ import annotations

from .api import Api
from .schema import Bytes, Struct, array, bytes_, int8, int16, int32, int64, string


class ScramCredentialDeletion(Struct):
    name: str = string()
    mechanism: int = int8()


class ScramCredentialUpsertion(Struct):
    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: Bytes = bytes_()
    salted_password: Bytes = bytes_()
    previous_salted_password: Bytes = bytes_(tag=10000)
    """Of the former password, with the same salt and iterations; it stays valid for ``previous_valid_ms``."""
    previous_valid_ms: int = int64(tag=10001)


class AlterUserScramCredentialsRequest(Struct):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class AlterUserScramCredentialsResponse(Struct):
    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)


API = Api(
    51,
    "AlterUserScramCredentials",
    (0, 0),
    flexible=0,
    request=AlterUserScramCredentialsRequest,
    response=AlterUserScramCredentialsResponse,
)
