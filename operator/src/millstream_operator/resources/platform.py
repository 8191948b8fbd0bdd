"""The operator's own login at the brokers of a Cluster.

    NAME-brokers-platform     Secret: username, password, salt; credentials, which brokers mount to verify the password;
                              `next` while the password is being replaced

The listener for brokers asks for it. The Secret belongs to the Cluster and goes with it. Both passwords are valid from
the moment when `next` exists until the operator has used it everywhere, so no login fails in between.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millstream_kafka.admin.access import ScramCredential
from millstream_kafka.scram_mechanism import ScramMechanism

from ..models import Cluster
from .broker_config import OPERATOR_USER, PLATFORM_FILE, broker_set_name
from .owned import Manifest, opaque_secret, secret_reference
from .user import ROTATED_FOR, rotated_for

MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
STAGE: Final = "millstream.dev/platform-listener"
"""Annotation of brokers whose listener for brokers asks for a login; its value is the Internal listener's stage."""
OPEN, CLOSED = "internal-open", "internal-closed"
TLS_STAGE: Final = "millstream.dev/platform-tls"
"""Annotation of brokers with the operator's listener; its value is a PlatformTls."""


@dataclass(frozen=True, slots=True)
class PlatformLogin:
    """The contents of the Secret. ``following``: the next password; ``previous``: the last one, still valid."""

    password: str = field(repr=False)
    salt: bytes = field(repr=False)
    following: str = field(default="", repr=False)
    previous: str = field(default="", repr=False)
    rotated_for: str = ""

    def begun(self, password: str, request: str) -> PlatformLogin:
        """The next password is valid, too."""
        return replace(self, following=password, previous="", rotated_for=request)

    def turned(self) -> PlatformLogin:
        """The next password is in use, and the one before still valid."""
        return replace(self, password=self.following, following="", previous=self.password)

    def ended(self) -> PlatformLogin:
        return replace(self, previous="")


def login_secret(cluster: Cluster) -> str:
    return f"{broker_set_name(cluster)}-platform"


def secret(cluster: Cluster, login: PlatformLogin) -> Manifest:
    valid = filter(None, (login.password, login.following, login.previous))
    lines = (
        ScramCredential.of_password(OPERATOR_USER, MECHANISM, one, salt=login.salt).line for one in valid
    )
    values = {
        "username": OPERATOR_USER.encode(),
        "password": login.password.encode(),
        "salt": login.salt,
        PLATFORM_FILE: "".join(f"{line}\n" for line in lines).encode(),
        **({"next": login.following.encode()} if login.following else {}),
        **({"previous": login.previous.encode()} if login.previous else {}),
    }
    return opaque_secret(
        secret_reference(cluster, login_secret(cluster)), values, {ROTATED_FOR: login.rotated_for}
    )


def login_of(live: Mapping[str, Any]) -> PlatformLogin:
    """What a Secret has. Raises ValueError, whose message contains nothing of it."""
    name, data = live["metadata"]["name"], live.get("data") or {}

    def value(key: str) -> bytes:
        try:
            return base64.b64decode(data.get(key, ""), validate=True)
        except ValueError:
            raise ValueError(f"key {key} of Secret {name} is not Base64") from None

    texts = {}
    for key in ("password", "next", "previous"):
        try:
            texts[key] = value(key).decode()
        except UnicodeDecodeError:
            raise ValueError(f"key {key} of Secret {name} is not UTF-8 text") from None
    for key in ("password", "salt", PLATFORM_FILE):
        if not data.get(key):
            raise ValueError(f"Secret {name} has no key {key}")
    return PlatformLogin(
        texts["password"], value("salt"), texts["next"], texts["previous"], rotated_for(live)
    )
