"""Keys of access control."""

from __future__ import annotations

import pytest

from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_keys import AUTHORIZERS
from millstream_broker.config.config_types import ConfigError, principals_of


@pytest.mark.parametrize(
    "name",
    [
        "",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
    ],
)
def test_both_names_of_kafkas_authorizer_are_known(name: str) -> None:
    assert BrokerConfig({"authorizer.class.name": name}).text("authorizer.class.name") == name


def test_another_authorizer_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"com.example.Own for configuration authorizer.class.name.*Standard"
    ):
        BrokerConfig({"authorizer.class.name": "com.example.Own"})


def test_super_users_are_separated_by_semicolons() -> None:
    text = " User:CN=a,O=b; User:admin ;"
    assert BrokerConfig({"super.users": text}).text("super.users") == text.strip()
    assert principals_of(text) == ["User:CN=a,O=b", "User:admin"]


@pytest.mark.parametrize("text", ["admin", "User:", ":admin", "User:a;b", "User:a,User:b", "User:a, User:b"])
def test_a_super_user_that_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no principal: expected TYPE:NAME"):
        BrokerConfig({"super.users": text})


def test_keys_of_access_rules_have_no_effect_without_an_authorizer() -> None:
    given = {"super.users": "User:admin", "allow.everyone.if.no.acl.found": "true"}
    why = f"there are no access rules: set authorizer.class.name to {AUTHORIZERS[0]}"
    assert BrokerConfig(given).without_effect() == [
        ("allow.everyone.if.no.acl.found", why),
        ("super.users", why),
    ]
    assert BrokerConfig({**given, "authorizer.class.name": AUTHORIZERS[0]}).without_effect() == []


def test_a_super_user_that_no_client_can_be_has_no_effect() -> None:
    given = {"super.users": "User:admin;Group:admins", "authorizer.class.name": AUTHORIZERS[0]}
    why = "Group:admins is no principal of a client: these begin with User:"
    assert BrokerConfig(given).without_effect() == [("super.users", why)]
