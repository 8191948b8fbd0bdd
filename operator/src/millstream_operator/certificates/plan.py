"""What to do next with the certificates of a Cluster, from what there is and what is needed; pure.

A new authority replaces the old one without an outage in these steps. Each is derived from the certificates
themselves, and from the time since which an authority is published: nothing depends on a step that was carried out.

    both trusted    the new authority is published beside the old one, and brokers trust both; the old one still issues
    re-issued       `overlap` later, when every broker has read that it trusts both, the new one issues all certificates
    one             when every broker serves its new certificate, and another `overlap` later, the old one is removed

That a broker has read its files is known from the certificate that it serves. So when an authority is published, all
certificates are issued again, still by the old one: a broker that serves a later one has read what came with it.

Invariant: whatever a broker serves was issued by an authority that is published. So an authority is published before
it issues, and stays as long as any certificate in use is its. A certificate that is missing, expired or lacks a name is
issued at once, by whichever authority there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509

from .issuing import Certificate, Issued, fingerprint, has_issued, issue, names_of, shown_time, whole_second

NewAuthority = Callable[[datetime], Issued]
MARGIN = timedelta(hours=1)
"""Before its end, what is about to expire counts as expired: brokers read a change minutes later."""


class Step(StrEnum):
    """Of the replacement of an authority."""

    NONE = "none"
    BOTH_TRUSTED = "both trusted"
    REISSUED = "re-issued"
    RETIRING = "retiring"


@dataclass(frozen=True, slots=True)
class Published:
    """The certificate of an authority that clients and brokers trust.

    ``since``: when it was published; ``unused_since``: since when no certificate in use is its.
    """

    certificate: Certificate
    since: datetime
    unused_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What there is, without what cannot be read.

    ``authorities``: those with keys, the newest last. ``certificates``: those of brokers. ``trusted``: authorities that
    are stored with these, for brokers. ``served``: the certificate that each running broker serves, None if it is not
    known.
    """

    authorities: tuple[Issued, ...] = ()
    published: tuple[Published, ...] = ()
    certificates: Mapping[int, Issued] = field(default_factory=dict)
    trusted: tuple[Certificate, ...] = ()
    served: Mapping[int, Certificate | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """``new_authority``: None if the authority is the user's own. ``rotate``: whether the user wants a new one."""

    names: Mapping[int, frozenset[str]]
    subject: Callable[[int], x509.Name]
    new_authority: NewAuthority | None
    life: timedelta
    overlap: timedelta
    rotate: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """What there should be.

    ``waits``: what the next step waits for, in words. ``not_served``: brokers that serve another certificate than
    theirs, or cannot be asked. ``rotated``: whether `rotate` was carried out.
    """

    authorities: tuple[Issued, ...]
    published: tuple[Published, ...]
    certificates: Mapping[int, Issued]
    step: Step
    waits: str
    not_served: tuple[int, ...]
    rotated: bool = False

    @property
    def trusted(self) -> tuple[Certificate, ...]:
        return tuple(each.certificate for each in self.published)

    @property
    def issuer(self) -> Issued:
        """The authority that issues now."""
        return self.authorities[0]


class NoAuthority(Exception):
    """There is no authority that can issue, and none may be made."""


def plan(found: Found, wanted: Wanted, now: datetime) -> Target:
    """Raises NoAuthority."""
    now = whole_second(now)
    usable, rotated = _authorities(found, wanted, now)
    newest = usable[-1]
    since = _since(found, newest, now)
    current = _current(found, usable)
    late = _behind(found, since)
    ready = now - since >= wanted.overlap and (current is None or not late)
    issuer = newest if ready else current
    certificates = _certificates(found, wanted, newest, issuer, usable, since, now)
    authorities = (newest,) if issuer is None or issuer is newest else (issuer, newest)
    not_served = _not_served(found, certificates)
    published = _published(found, wanted, authorities, certificates, now)
    step, waits = _step(newest, certificates, published, wanted, since, late, not_served, now)
    return Target(authorities, published, certificates, step, waits, not_served, rotated)


def _authorities(found: Found, wanted: Wanted, now: datetime) -> tuple[list[Issued], bool]:
    """Those that are valid, the newest last; and whether it is new because the user wants a new one."""
    usable = [each for each in found.authorities if lasts(each, now)][-2:]
    if wanted.new_authority is None:
        if not usable:
            raise NoAuthority
        return usable, False
    # A second request waits for the end of the first: there are never more than two authorities with keys.
    if not usable or usable[-1].renewal_at <= now or (wanted.rotate and len(usable) == 1):
        return [*usable[-1:], wanted.new_authority(now)], wanted.rotate
    return usable, False


def lasts(issued: Issued, now: datetime) -> bool:
    """Whether it is valid, and not about to expire."""
    return issued.is_valid(now) and issued.ends_at - now > MARGIN


def _since(found: Found, authority: Issued, now: datetime) -> datetime:
    since = {fingerprint(each.certificate): each.since for each in found.published}
    return min(now, since.get(fingerprint(authority.certificate), now))


def _current(found: Found, usable: Sequence[Issued]) -> Issued | None:
    """The authority that clients know: the newest that has issued what brokers have, else the older one."""
    issuers = [
        each
        for each in usable
        if any(_is_of(each, certificate) for certificate in found.certificates.values())
    ]
    if issuers:
        return issuers[-1]
    published = {fingerprint(each.certificate) for each in found.published}
    return next((each for each in usable[:-1] if fingerprint(each.certificate) in published), None)


def _is_of(authority: Issued, issued: Issued) -> bool:
    return has_issued(authority.certificate, issued.certificate)


def _behind(found: Found, since: datetime) -> list[int]:
    """Running brokers that may not trust an authority that is published since that time."""
    return sorted(
        broker
        for broker, served in found.served.items()
        if served is None
        or broker not in found.certificates
        or fingerprint(served) != fingerprint(found.certificates[broker].certificate)
        or found.certificates[broker].issued_at < since
    )


def _not_served(found: Found, certificates: Mapping[int, Issued]) -> tuple[int, ...]:
    return tuple(
        sorted(
            broker
            for broker, served in found.served.items()
            if broker in certificates
            and (served is None or fingerprint(served) != fingerprint(certificates[broker].certificate))
        )
    )


def _certificates(
    found: Found,
    wanted: Wanted,
    newest: Issued,
    issuer: Issued | None,
    usable: Iterable[Issued],
    since: datetime,
    now: datetime,
) -> dict[int, Issued]:
    known = [*(each.certificate for each in usable), *_valid(found, now)]
    result = {}
    for broker, names in wanted.names.items():
        there, subject = found.certificates.get(broker), wanted.subject(broker)
        signer = issuer or newest
        if there is None or _must_replace(there, subject, names, known, now):
            result[broker] = issue(signer, subject, names, now, wanted.life, is_server=True)
        elif issuer is not None and _should_replace(there, issuer, newest, since, now, wanted.life):
            result[broker] = issue(issuer, subject, names, now, wanted.life, is_server=True)
        else:
            result[broker] = there
    return result


def _valid(found: Found, now: datetime) -> list[Certificate]:
    there = [*(each.certificate for each in found.published), *found.trusted]
    return [each for each in there if each.not_valid_before_utc <= now < each.not_valid_after_utc]


def _must_replace(
    there: Issued, subject: x509.Name, names: frozenset[str], known: Iterable[Certificate], now: datetime
) -> bool:
    certificate = there.certificate
    return (
        not lasts(there, now)
        or certificate.subject != subject
        or not names <= names_of(certificate)
        or not any(has_issued(each, certificate) for each in known)
    )


def _should_replace(
    there: Issued, issuer: Issued, newest: Issued, since: datetime, now: datetime, life: timedelta
) -> bool:
    if issuer is not newest and there.issued_at < since:
        return True  # shows that brokers have read that they trust the newest authority
    return is_due(there, issuer, now, life)


def is_due(there: Issued, issuer: Issued, now: datetime, life: timedelta) -> bool:
    """Whether this authority should issue a certificate again; one that ends no later would gain nothing."""
    if not _is_of(issuer, there):
        return True
    return there.renewal_at <= now and min(now + life, issuer.ends_at) > there.ends_at


def _published(
    found: Found,
    wanted: Wanted,
    authorities: Iterable[Issued],
    certificates: Mapping[int, Issued],
    now: datetime,
) -> tuple[Published, ...]:
    """The authorities to trust: those that issue, those of certificates in use, and for a while those that were."""
    before = {fingerprint(each.certificate): each for each in found.published}
    known = {fingerprint(each): each for each in found.trusted}
    known |= {name: each.certificate for name, each in before.items()}
    roots = [root for each in authorities for root in each.chain]
    known |= {fingerprint(each): each for each in roots}
    needed = {fingerprint(each) for each in roots}
    is_unknown = None in found.served.values()
    in_use = [
        *(each.certificate for each in certificates.values()),
        *(each.certificate for broker, each in found.certificates.items() if broker in certificates
          and found.served.get(broker) is None),
        *(each for each in found.served.values() if each is not None),
    ]  # fmt: skip
    result = []
    for name, certificate in known.items():
        there = before.get(name)
        if certificate.not_valid_after_utc <= now:
            continue
        if name in needed or any(has_issued(certificate, each) for each in in_use):
            result.append(Published(certificate, min(now, there.since) if there else now))
        elif there is not None:
            unused = None if is_unknown else min(now, there.unused_since or now)
            if unused is None or now - unused < wanted.overlap:
                result.append(Published(certificate, min(now, there.since), unused))
    return tuple(sorted(result, key=lambda each: (each.since, fingerprint(each.certificate))))


def _step(
    newest: Issued,
    certificates: Mapping[int, Issued],
    published: Iterable[Published],
    wanted: Wanted,
    since: datetime,
    late: Iterable[int],
    not_served: Iterable[int],
    now: datetime,
) -> tuple[Step, str]:
    own = {fingerprint(each) for each in newest.chain}
    others = [each for each in published if fingerprint(each.certificate) not in own]
    if not all(_is_of(newest, each) for each in certificates.values()):
        until = since + wanted.overlap
        if now < until:
            return (
                Step.BOTH_TRUSTED,
                f"certificates are issued by the new authority from {shown_time(until)} on",
            )
        return Step.BOTH_TRUSTED, f"waiting until {_brokers(late, 'trust')} the new authority"
    if not others:
        return Step.NONE, ""
    if names := list(not_served):
        return Step.REISSUED, f"waiting until {_brokers(names, 'serve')} what was issued"
    until = max((each.unused_since or now) + wanted.overlap for each in others)
    return Step.RETIRING, f"the old authority is trusted until {shown_time(until)}"


def _brokers(numbers: Iterable[int], verb: str) -> str:
    found = [str(each) for each in numbers]
    if len(found) == 1:
        return f"broker {found[0]} {verb}s"
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"brokers {', '.join(found[:5])}{more} {verb}"
