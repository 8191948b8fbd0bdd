"""Rights that requests need as a whole, on a broker whose handlers have an authoriser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from millstream_broker import api
from millstream_broker.network.handlers import REGISTERED, Registration, RequestContext, error_response
from millstream_broker.security.acl.authorizer import AclAuthorizer, Authorizer
from millstream_broker.security.acl.rights import Right
from millstream_broker.security.authentication import Authentication
from millstream_kafka.acl import (
    CLUSTER_NAME,
    AccessControlEntry,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.protocol import alter_user_scram_credentials
from millstream_kafka.protocol.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

api.load()
AUTHENTICATION = Authentication("PLAINTEXT", "10.0.0.1")
REFUSABLE = [
    registration
    for registration in REGISTERED.values()
    if any(right.field is not None for right in registration.rights)
]
WHOLE = [registration for registration in REFUSABLE if registration.refused is None]


class Handled(Exception):
    """The handler itself was called."""


def call(registration: Registration, authorizer: Authorizer, group: str = "g") -> None:
    """Call the handler of a registration; raises Handled, or the refusal."""

    def handle(*_: Any) -> None:
        raise Handled

    class Parts(dict[Any, Any]):
        def __missing__(self, key: Any) -> object:
            return object()

        def __contains__(self, key: object) -> bool:
            return True

    parts: Mapping[Any, Any] = Parts({Authorizer: authorizer})
    stand_in = Registration(
        registration.api, handle, (), False, False, False, None, registration.rights, registration.refused
    )
    request = registration.api.request()
    for field in {"group_id", "transactional_id"} & set(request.__match_args__):
        setattr(request, field, group)
    context = RequestContext(0, None, AUTHENTICATION.session, AUTHENTICATION, 1)
    stand_in.bound(parts).handle(context, request)


@pytest.mark.parametrize("registration", WHOLE, ids=lambda registration: registration.api.name)
def test_a_request_needs_its_right_as_a_whole(registration: Registration) -> None:
    rights = [right for right in registration.rights if right.field is not None]
    assert rights
    for right in rights:
        authorizer = AclAuthorizer()
        for other in rights:
            if other is not right:
                authorizer.replace(pattern(other), [allowing(other)])
        with pytest.raises(ApiError) as refused:
            call(registration, authorizer)
        assert refused.value.code is ErrorCode[right.refusal]
        authorizer.replace(pattern(right), [allowing(right)])
        with pytest.raises(Handled):
            call(registration, authorizer)
        denying = allowing(right)._replace(permission_type=PermissionType.DENY)
        authorizer.replace(pattern(right), [allowing(right), denying])
        with pytest.raises(ApiError):
            call(registration, authorizer)


def pattern(right: Right) -> ResourcePattern:
    is_cluster = right.resource_type is ResourceType.CLUSTER
    return ResourcePattern(right.resource_type, CLUSTER_NAME if is_cluster else "g")


def allowing(right: Right) -> AccessControlEntry:
    return AccessControlEntry("User:*", "*", right.operation, PermissionType.ALLOW)


@pytest.mark.parametrize("registration", WHOLE, ids=lambda registration: registration.api.name)
def test_without_an_authorizer_no_right_is_needed(registration: Registration) -> None:
    with pytest.raises(Handled):
        call(registration, Authorizer())


@pytest.mark.parametrize("registration", REFUSABLE, ids=lambda registration: registration.api.name)
def test_a_refused_request_is_answered(registration: Registration) -> None:
    """It does not end the connection."""
    error, request = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), registration.api.request()
    if registration.refused is None:
        assert error_response(registration.api, error).error_code == error.code
    else:
        assert isinstance(registration.refused(request, error), registration.api.response)


def test_each_user_whose_credentials_may_not_be_altered_gets_the_error() -> None:
    deletions = [ScramCredentialDeletion("a", 1), ScramCredentialDeletion("b", 1)]
    request = AlterUserScramCredentialsRequest(deletions, [ScramCredentialUpsertion("b", 2)])
    registration = REGISTERED[alter_user_scram_credentials.API.key]
    assert registration.refused is not None
    error = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    response: Any = registration.refused(request, error)
    assert [(each.user, each.error_code) for each in response.results] == [
        ("a", error.code),
        ("b", error.code),
    ]
