"""The Secret with the password or certificate that the operator generates for a User.

    username, password, sasl.jaas.config (for Kafka's Java clients)
    previous-password (the former one, while it is valid)
    user.crt, user.key, user.pem (both), ca.crt (the authorities that brokers' certificates are of)

Its owner is the User, so it goes with it. Annotations name the rotation that gave the password, and the end of the
former one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ..certificates.issuing import Issued, pem_of, read_issued
from ..models import API_VERSION, User
from ..models.conditions import rfc3339
from .certificates import CA
from .owned import CLUSTER_LABEL, MANAGED_BY, opaque_secret, values_of

Manifest = dict[str, Any]
ROTATED_FOR: Final = "millstream.dev/rotated-for"
PREVIOUS_UNTIL: Final = "millstream.dev/previous-password-until"
PREVIOUS: Final = "previous-password"
CERTIFICATE: Final = "user.crt"
KEY: Final = "user.key"
KEY_AND_CERTIFICATE: Final = "user.pem"
MECHANISM: Final = "SCRAM-SHA-512"
LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
MAX_PASSWORD: Final = 1024
"""Characters."""
MOST_VALID: Final = timedelta(days=1)
"""Longest time for which brokers accept a former password."""


def reference(user: User) -> Manifest:
    """The Secret, identified by its names and owner."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": user.namespace,
            "name": user.name,
            "labels": {
                "app.kubernetes.io/name": "millstream-user",
                "app.kubernetes.io/instance": user.name,
                **MANAGED_BY,
                CLUSTER_LABEL: user.spec.cluster_ref.name,
            },
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": User.KIND,
                    "name": user.name,
                    "uid": user.metadata.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
    }


@dataclass(frozen=True, slots=True)
class Former:
    """A password that was replaced, and the end of its validity."""

    value: str = field(repr=False)
    until: datetime

    def valid_ms(self, now: datetime) -> int:
        """How long it is valid from now on."""
        return max(0, int((self.until - now).total_seconds() * 1000))

    def kept(self, now: datetime) -> Former | None:
        """What stays of it: None if it is over. A clock that was wrong, or a hand, may have written an end that brokers
        refuse: it ends a day from now."""
        return None if self.until <= now else replace(self, until=min(self.until, now + MOST_VALID))


def secret(user: User, password: str, rotated_for: str, former: Former | None = None) -> Manifest:
    """The Secret with a password; ``rotated_for`` is "" without a rotation."""
    values = {
        "username": user.user_name,
        "password": password,
        "sasl.jaas.config": jaas_config(user.user_name, password),
    }
    annotations = {ROTATED_FOR: rotated_for}
    if former is not None:
        values[PREVIOUS] = former.value
        annotations[PREVIOUS_UNTIL] = rfc3339(former.until)
    encoded = {key: value.encode() for key, value in values.items()}
    return opaque_secret(reference(user), encoded, annotations)


def former_of(live: Mapping[str, Any]) -> Former | None:
    """The former password in a Secret; None without a usable one."""
    try:
        until = datetime.fromisoformat(end_of_former(live))
        until = until.astimezone(UTC) if until.tzinfo else until.replace(tzinfo=UTC)
        return Former(password_of(live, PREVIOUS), until)
    except (ValueError, OverflowError):
        return None


def end_of_former(live: Mapping[str, Any]) -> str:
    """What a Secret says of the end of a former password; "" if it has none."""
    found: str = (live["metadata"].get("annotations") or {}).get(PREVIOUS_UNTIL, "")
    return found


def certificate_secret(user: User, issued: Issued, trusted: bytes, rotated_for: str) -> Manifest:
    """The Secret with a certificate; ``trusted``: the authorities of the Cluster."""
    values = {
        CERTIFICATE: pem_of(issued.chain),
        KEY: issued.key,
        KEY_AND_CERTIFICATE: issued.pem(),
        CA: trusted,
    }
    return opaque_secret(reference(user), values, {ROTATED_FOR: rotated_for})


def certificate_of(live: Mapping[str, Any] | None) -> Issued | None:
    """The certificate in a Secret; None without a valid pair of key and certificate."""
    values = values_of(live)
    try:
        return read_issued(values[KEY], values[CERTIFICATE])
    except (KeyError, ValueError):
        return None


def jaas_config(username: str, password: str) -> str:
    """sasl.jaas.config of Kafka's Java clients."""
    quoted = (re.sub(r'(["\\])', r"\\\1", value) for value in (username, password))
    name, word = quoted
    return f'{LOGIN_MODULE} required username="{name}" password="{word}";'


def rotated_for(live: Mapping[str, Any]) -> str:
    """The rotation that gave a Secret's password; "" if there was none."""
    found: str = (live["metadata"].get("annotations") or {}).get(ROTATED_FOR, "")
    return found


def version_of(live: Mapping[str, Any]) -> str:
    """Changes with each change of the Secret, and if another one takes its place."""
    metadata = live["metadata"]
    return f"{metadata['uid']}/{metadata.get('resourceVersion', '')}"


def password_of(live: Mapping[str, Any], key: str) -> str:
    """The password in a Secret. Raises ValueError, whose message does not contain it."""
    name, data = live["metadata"]["name"], live.get("data") or {}
    if key not in data:
        there = ", ".join(sorted(data)) or "none"
        raise ValueError(f"Secret {name} has no key {key}: it has {there}")
    try:
        password = base64.b64decode(data[key], validate=True).decode()
    except ValueError:
        raise ValueError(f"key {key} of Secret {name} is not UTF-8 text") from None
    if not password or len(password) > MAX_PASSWORD:
        raise ValueError(
            f"key {key} of Secret {name} has {len(password):,} characters: 1 to 1,024 are allowed"
        )
    if not password.isprintable():
        raise ValueError(
            f"key {key} of Secret {name} has a newline or another character that cannot be printed: write the"
            " password without one, as printf does and echo does not"
        )
    return password
