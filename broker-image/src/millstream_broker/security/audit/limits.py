"""How many lines the audit log may have: a rate for each kind of event, and ten seconds' worth of it at once.

One source may use a tenth of the rate of logins and denied requests. A source is an address, with the principal of a
client that has authenticated; never a name that clients choose freely.
"""

from __future__ import annotations

from typing import NamedTuple

from ...runtime.line_limits import LineLimits

ADMINISTRATIVE, DENIED, LOGIN = "administrative", "denied", "login"
KINDS = (ADMINISTRATIVE, DENIED, LOGIN)
SHARE = {ADMINISTRATIVE: 1.0, DENIED: 0.1, LOGIN: 0.1}
"""Of the rate of its kind, for each source."""
BURST_S = 10.0


class EventSource(NamedTuple):
    principal: str
    host: str


AuditLimits = LineLimits[str, EventSource]


def audit_limits(per_second: int) -> AuditLimits:
    return AuditLimits(float(per_second), per_second * BURST_S, SHARE.__getitem__)
