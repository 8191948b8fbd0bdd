"""Writes docs/reference/authorization.md: what each API needs to be allowed, from the handlers' registrations.

make docs/reference/authorization.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from millstream_broker.api import load
from millstream_broker.network.handlers import REGISTERED, Registration

HEAD = """# What each request needs to be allowed

Written by `make docs/reference/authorization.md` from the handlers' own registrations; a test holds it to them.
Another test sends most of these requests to Apache Kafka 4.3.1, too: without a right, with single ones, and with
denials. The page applies to brokers with [`authorizer.class.name`](../security.md#authorisation).

A request that needs a right **as a whole** is refused as a whole. Every other right is checked for each topic or
group that a request names, and only those are refused. Permission for Read, Write, Delete or Alter includes Describe,
and AlterConfigs includes DescribeConfigs. Super users and brokers of the cluster may do everything.

| request | operation | resource | on | without it |
|---|---|---|---|---|"""


def page() -> str:
    """The whole page."""
    load()
    found = sorted(REGISTERED.values(), key=lambda registration: registration.api.name)
    with_rights = [registration for registration in found if registration.rights]
    of_brokers = [registration for registration in found if registration.for_brokers]
    free = [
        registration for registration in found if not registration.rights and not registration.for_brokers
    ]
    lines = [
        HEAD,
        *(row for registration in with_rights for row in _rows(registration)),
        "",
        "## Requests between brokers",
        "",
        "Only brokers of the cluster may send these, over a connection on which they have authenticated as such. No",
        "access rule allows them to a client, not even to a super user; it gets CLUSTER_AUTHORIZATION_FAILED:",
        f"{_names(of_brokers)}.",
        "",
        "## Requests that need no right",
        "",
        f"{_names(free)}.",
    ]
    return "\n".join(lines) + "\n"


def _rows(registration: Registration) -> Iterable[str]:
    for right in registration.rights:
        on = right.of if right.field is None else f"{right.of}, as a whole"
        yield (
            f"| {registration.api.name} | {right.operation.title} | {right.resource_type.title} | {on}"
            f" | {right.refusal} |"
        )


def _names(registrations: Iterable[Registration]) -> str:
    return ", ".join(registration.api.name for registration in registrations)


if __name__ == "__main__":
    sys.stdout.write(page())
