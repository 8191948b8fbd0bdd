"""AlterUserScramCredentials: set and delete SCRAM credentials (KIP-554).

A request names each user once, whatever the mechanism. Users are stored independently: the error of one does not
affect the others. Clients send the salted password; the expensive function is theirs to run. A client of Millstream may
send that of the former password, too, which then stays valid for a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import alter_user_scram_credentials
from millstream_kafka.protocol.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.scram_mechanism import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism

from ..network.handlers import RequestContext, handler
from ..runtime.slices import gather_in_slices
from ..security.acl.rights import on_cluster
from ..security.audit.administration import Changed
from ..security.scram_credentials import ScramCredential, ScramCredentials

MAX_BYTES = 1024
"""Longest salt and salted password."""
MAX_PREVIOUS_MS = 24 * 3_600_000
AT_ONCE = 20


class Change(NamedTuple):
    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None
    previous: ScramCredential | None = None
    previous_valid_ms: int = 0


def _changes(request: AlterUserScramCredentialsRequest) -> Iterator[Changed]:
    for deletion in request.deletions:
        yield Changed("User", deletion.name, f"{_label(deletion.mechanism)} removed")
    for upsertion in request.upsertions:
        stays = f", the former password valid for {upsertion.previous_valid_ms} ms"
        what = stays if upsertion.previous_salted_password else ""
        yield Changed("User", upsertion.name, f"{_label(upsertion.mechanism)} set{what}")


def _label(number: int) -> str:
    return next((each.label for each in ScramMechanism if each.value == number), str(number))


def _refused(request: AlterUserScramCredentialsRequest, error: ApiError) -> AlterUserScramCredentialsResponse:
    named = [*(each.name for each in request.deletions), *(each.name for each in request.upsertions)]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user, error.code, error.message) for user in dict.fromkeys(named)
        ]
    )


@handler(
    alter_user_scram_credentials.API,
    changes=_changes,
    rights=[on_cluster(AclOperation.ALTER)],
    refused=_refused,
)
async def handle(
    credentials: ScramCredentials, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    changes: dict[str, Change | ApiError] = {}
    for deletion in request.deletions:
        _add(changes, deletion.name, lambda deletion=deletion: _deletion(credentials, deletion))  # type: ignore[misc]
    for upsertion in request.upsertions:
        _add(changes, upsertion.name, lambda upsertion=upsertion: _upsertion(upsertion))  # type: ignore[misc]
    done = (_done(credentials, user, change) for user, change in changes.items())
    return AlterUserScramCredentialsResponse(results=await gather_in_slices(done, at_once=AT_ONCE))


def _add(changes: dict[str, Change | ApiError], user: str, read: Callable[[], Change]) -> None:
    before = changes.get(user)
    if isinstance(before, Change):
        message = "A user credential cannot be altered twice in the same request"
        changes[user] = ApiError(ErrorCode.DUPLICATE_RESOURCE, message)
    elif before is None:
        try:
            changes[user] = read()
        except ApiError as error:
            changes[user] = error


def _mechanism(user: str, number: int) -> ScramMechanism:
    if not user:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    try:
        return ScramMechanism(number)
    except ValueError:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None


def _deletion(credentials: ScramCredentials, deletion: ScramCredentialDeletion) -> Change:
    mechanism = _mechanism(deletion.name, deletion.mechanism)
    if credentials.get(deletion.name, mechanism) is None:
        message = "Attempt to delete a user credential that does not exist"
        raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return Change(deletion.name, mechanism, None)


def _upsertion(upsertion: ScramCredentialUpsertion) -> Change:
    mechanism = _mechanism(upsertion.name, upsertion.mechanism)
    if upsertion.iterations > MAX_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if upsertion.iterations < MIN_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    salt, salted_password = bytes(upsertion.salt), bytes(upsertion.salted_password)
    for name, value in (("salt", salt), ("salted password", salted_password)):
        if not 0 < len(value) <= MAX_BYTES:
            message = f"The {name} has {len(value)} bytes: 1 to {MAX_BYTES} are allowed"
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)

    def of(salted: bytes) -> ScramCredential:
        return ScramCredential.of_salted_password(mechanism, salt, salted, upsertion.iterations)

    former = bytes(upsertion.previous_salted_password)
    if not former:
        return Change(upsertion.name, mechanism, of(salted_password))
    valid_ms = upsertion.previous_valid_ms
    if len(former) > MAX_BYTES or not 0 < valid_ms <= MAX_PREVIOUS_MS:
        message = (
            f"A former password of {len(former)} bytes, valid for {valid_ms} ms: 1 to {MAX_BYTES} bytes and 1 to"
            f" {MAX_PREVIOUS_MS} ms are allowed"
        )
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    return Change(upsertion.name, mechanism, of(salted_password), of(former), valid_ms)


async def _done(
    credentials: ScramCredentials, user: str, change: Change | ApiError
) -> AlterUserScramCredentialsResult:
    if isinstance(change, ApiError):
        return AlterUserScramCredentialsResult(user, change.code, change.message)
    try:
        await credentials.alter(*change)
    except ApiError as error:
        return AlterUserScramCredentialsResult(user, error.code, error.message)
    return AlterUserScramCredentialsResult(user)
