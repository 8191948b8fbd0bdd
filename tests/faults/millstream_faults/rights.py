"""Faults of security: certificates and their authority rotate, passwords, rules and quotas change, under load.

Each ends when it has taken effect at every broker that runs: a client with the old password, an authority that is no
longer trusted, or a right that was taken must then be refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial

from millstream_kafka.client import Connection
from millstream_kafka.client.errors import AuthenticationFailed, BrokerError
from millstream_kafka.client.sasl import Login

from .guard import is_refused, throttle_ms
from .plan import Fault
from .roles import Roles
from .secured import MECHANISM
from .users import PROBER

EFFECT_S = 120.0
"""Limit for a change to take effect: a broker may be down, or cut off from ZooKeeper. The promise is the run's own."""
PAUSE_S = 0.3
RATE = 2000.0
"""Bytes a second of a throttled user."""


def until(holds: Callable[[], bool], what: str) -> None:
    """Raises RuntimeError."""
    deadline = time.monotonic() + EFFECT_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {EFFECT_S:g} s")
        time.sleep(PAUSE_S)


@contextlib.contextmanager
def certificates(roles: Roles, fault: Fault) -> Iterator[str]:
    secured = roles.lab.secured
    with roles.lab.users.changing:
        for number in secured.brokers:
            secured.issue(number)
        try:
            yield "of all brokers"
        finally:
            until(lambda: serve_newest(roles), "brokers serve their new certificates")


@contextlib.contextmanager
def authority(roles: Roles, fault: Fault) -> Iterator[str]:
    """Both are trusted, then certificates are issued by the new one, then it alone is trusted."""
    secured = roles.lab.secured
    with roles.lab.users.changing:
        before = secured.authority
        after = next(each for each in secured.authorities if each is not before)
        secured.trust(before, after)
        secured.authority = after
        try:
            yield f"to {after.certificate.serial_number % 1000}"
        finally:
            for number in secured.brokers:
                secured.issue(number)
            until(lambda: serve_newest(roles), "brokers serve certificates of the new authority")
            secured.trust(after)


def serve_newest(roles: Roles) -> bool:
    """Whether each broker serves the certificate that is in its file now."""
    return all(
        served(address)
        == ssl.PEM_cert_to_DER_cert(certificate_in(roles.lab.secured.keystore(number).read_text()))
        for number, address in roles.lab.secured_addresses.items()
    )


def certificate_in(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return f"{begin}{pem.partition(begin)[2].partition(end)[0]}{end}\n"


def served(address: str) -> bytes | None:
    """The certificate that a broker serves, in DER; None if it does not answer."""
    host, _, port = address.rpartition(":")
    try:
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)), timeout=5.0))
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def password(roles: Roles, fault: Fault) -> Iterator[str]:
    """Of a user whose client reads it from a file, or of one that tries the old one."""
    users = roles.lab.users
    user = (PROBER, PROBER, "position-1")[fault.target % 3]
    with users.changing:
        old = users.change_password(user)
        try:
            yield f"of {user}"
        finally:
            new = users.login(user).security.sasl
            assert new is not None
            fresh = new.password.text()
            for number, address in roles.lab.secured_addresses.items():
                for secret, is_right in ((old, False), (fresh, True)):
                    what = f"broker {number} {'accepts the new' if is_right else 'refuses the old'} password"
                    until(partial(is_answer, roles, address, user, secret, is_right), what)


def is_answer(roles: Roles, address: str, user: str, secret: str, is_right: bool) -> bool:
    """Whether a broker answers, and accepts or refuses the password."""
    return logs_in(roles, address, user, secret) is is_right


def logs_in(roles: Roles, address: str, user: str, secret: str) -> bool | None:
    """None if the broker does not answer."""
    host, _, port = address.rpartition(":")

    async def attempt() -> bool | None:
        tls = await asyncio.to_thread(roles.lab.secured.tls.context)
        try:
            login = Login(MECHANISM.label, user, secret)
            connection = await Connection.open(
                host, int(port), "password", timeout=10.0, ssl=tls, login=login
            )
        except AuthenticationFailed:
            return False
        except BrokerError:
            return None
        await connection.close()
        return True

    return asyncio.run(attempt())


@contextlib.contextmanager
def revoked(roles: Roles, fault: Fault) -> Iterator[str]:
    users = roles.lab.users
    with users.changing:
        users.revoke()
        try:
            yield f"of {PROBER}"
        finally:
            until(lambda: is_refused(users) is True, f"{PROBER} is refused")
            users.grant()
            until(lambda: is_refused(users) is False, f"{PROBER} is allowed again")


@contextlib.contextmanager
def throttled(roles: Roles, fault: Fault) -> Iterator[str]:
    users = roles.lab.users
    with users.changing:
        for user in (PROBER, "writer-2"):
            users.throttle(user, RATE)
        try:
            yield f"{PROBER} and writer-2 to {RATE:g} bytes a second"
            until(lambda: throttle_ms(users) > 0, f"{PROBER} is throttled")
        finally:
            users.unthrottle()
