"""A Cluster's certificates while years pass: what clients trust always verifies what brokers serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_operator.certificates.issuing import (
    Certificate,
    Issued,
    fingerprint,
    has_issued,
    issue,
    named,
    names_of,
    new_authority,
)
from millstream_operator.certificates.plan import (
    Found,
    NoAuthority,
    Step,
    Target,
    Wanted,
    is_due,
    lasts,
    plan,
)

DAY = timedelta(days=1)
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
OVERLAP = 7 * DAY
SECOND = timedelta(seconds=1)


def authority(now: datetime, life: timedelta = 300 * DAY) -> Issued:
    return new_authority("east", "ns", now, life)


def wanted(brokers: int = 3, *, rotate: bool = False, own: bool = False, extra: str = "") -> Wanted:
    return Wanted(
        names={
            broker: frozenset({f"broker-{broker}.example.com", "10.0.0.1", *([extra] if extra else ())})
            for broker in range(brokers)
        },
        subject=lambda broker: named(f"broker-{broker}", organization="east"),
        new_authority=None if own else authority,
        life=90 * DAY,
        overlap=OVERLAP,
        rotate=rotate,
    )


def found_of(target: Target, served: Iterable[int] | None = None) -> Found:
    """What there is after a plan was carried out; ``served``: brokers that have read it, by default all."""
    return Found(
        target.authorities,
        target.published,
        target.certificates,
        target.trusted,
        {
            broker: each.certificate if served is None or broker in served else None
            for broker, each in target.certificates.items()
        },
    )


def verifies(trusted: Iterable[Certificate], chain: Iterable[Certificate], host: str, now: datetime) -> bool:
    leaf, *others = chain
    verifier = PolicyBuilder().store(Store(list(trusted))).time(now).build_server_verifier(x509.DNSName(host))
    try:
        verifier.verify(leaf, others)
    except VerificationError:
        return False
    return True


class World:
    """Secrets, brokers that read them late, and a client that reads the published authorities late."""

    def __init__(self, want: Wanted | None = None) -> None:
        self.now = BEGIN
        self.want = want or wanted()
        self.found = Found()
        self.brokers: dict[int, Issued] = {}
        self.client: tuple[Certificate, ...] = ()
        self.stale: set[int] = set()
        """Brokers that do not read their files."""
        self.steps: list[Step] = []

    def reconcile(self, writes: int = 3) -> Target:
        """The operator plans, and writes its Secrets in order; fewer writes: it ended in between."""
        served: dict[int, Certificate | None] = {
            broker: each.certificate for broker, each in self.brokers.items()
        }
        target = plan(replace(self.found, served=served), self.want, self.now)
        if writes > 0:
            self.found = replace(self.found, authorities=target.authorities)
        if writes > 1:
            self.found = replace(self.found, published=target.published)
        if writes > 2:
            self.found = replace(self.found, certificates=target.certificates, trusted=target.trusted)
        if not self.steps or self.steps[-1] != target.step:
            self.steps.append(target.step)
        return target

    def read(self) -> None:
        """Brokers and the client read the Secrets. As brokers do, they refuse what is not valid now."""
        for broker, each in self.found.certificates.items():
            if broker not in self.stale and each.is_valid(self.now):
                self.brokers[broker] = each
        self.client = tuple(each.certificate for each in self.found.published)

    def check(self, trusted: Iterable[Certificate] | None = None) -> None:
        for broker, each in self.brokers.items():
            if broker in self.want.names and each.is_valid(self.now):
                published = self.client if trusted is None else trusted
                assert verifies(published, each.chain, f"broker-{broker}.example.com", self.now), broker

    def settle(self) -> Target:
        for _ in range(4):
            target = self.reconcile()
            self.read()
        self.check()
        return target


def test_three_years_pass_without_a_client_that_cannot_verify() -> None:
    """Certificates live for 90 days and authorities for 300: each is replaced many times."""
    world = World()
    world.settle()
    authorities, certificates = set(), set()
    for _ in range(3 * 365):
        world.now += DAY
        world.reconcile()
        world.check()  # the client has not read anything for a day
        world.check([each.certificate for each in world.found.published])
        world.read()
        world.check()
        assert all(each.is_valid(world.now) for each in world.brokers.values())
        authorities |= {fingerprint(each.certificate) for each in world.found.authorities}
        certificates |= {fingerprint(each.certificate) for each in world.found.certificates.values()}
    assert len(authorities) == 6
    assert len(certificates) > 3 * 3 * 365 / 60
    assert world.steps[:5] == [Step.NONE, Step.BOTH_TRUSTED, Step.REISSUED, Step.RETIRING, Step.NONE]


def test_nothing_changes_while_nothing_is_due() -> None:
    world = World()
    before = world.settle()
    for _ in range(59):
        world.now += DAY
        after = world.reconcile()
        assert (after.authorities, after.published) == (before.authorities, before.published)
        assert after.certificates == before.certificates


def test_certificate_is_renewed_at_two_thirds_of_its_life() -> None:
    world = World()
    world.settle()
    first = world.found.certificates[0]
    world.now = first.renewal_at - timedelta(seconds=1)
    assert world.reconcile().certificates[0] is first
    world.now = first.renewal_at
    assert world.settle().certificates[0] is not first
    assert len(world.found.authorities) == 1


def test_everything_expired_is_replaced_at_once() -> None:
    world = World()
    world.settle()
    world.now += 1000 * DAY
    world.settle()
    assert all(each.is_valid(world.now) for each in world.brokers.values())
    assert len(world.found.published) == 1


def test_authority_in_its_last_hour_issues_nothing() -> None:
    """The brokers' certificates end with it: they are replaced before, as brokers read a change late."""
    world = World()
    world.settle()
    old = world.found.authorities[0]
    world.now = old.ends_at - timedelta(minutes=59)
    world.settle()
    assert not any(has_issued(old.certificate, each.certificate) for each in world.brokers.values())


def test_new_authority_waits_for_a_broker_that_does_not_read_its_files() -> None:
    world = World()
    world.settle()
    old = world.found.authorities[0]
    world.now += DAY
    world.stale = {1}
    world.want = wanted(rotate=True)
    world.reconcile()
    world.want = wanted()
    world.now += 30 * DAY
    target = world.settle()
    assert (target.step, target.issuer) == (Step.BOTH_TRUSTED, old)
    assert target.waits == "waiting until broker 1 trusts the new authority"
    assert target.not_served == (1,)
    world.stale = set()
    assert world.settle().issuer != old


def test_rotation_on_request_takes_three_steps() -> None:
    world = World()
    world.settle()
    old = world.found.authorities[0].certificate
    world.want = wanted(rotate=True)
    assert world.reconcile().rotated
    world.want = wanted()
    target = world.settle()
    assert (target.step, len(target.trusted), target.issuer.certificate) == (Step.BOTH_TRUSTED, 2, old)
    world.now += OVERLAP
    target = world.settle()
    assert (target.step, len(target.trusted), len(target.authorities)) == (Step.RETIRING, 2, 1)
    assert target.issuer.certificate != old
    world.now += OVERLAP
    target = world.settle()
    assert (target.step, target.trusted) == (Step.NONE, (target.issuer.certificate,))


def test_steps_of_a_rotation_are_taken_at_their_time_and_not_before() -> None:
    world = World()
    world.settle()
    world.want = wanted(rotate=True)
    world.reconcile()
    world.want = wanted()
    world.settle()
    for before, after in ((Step.BOTH_TRUSTED, Step.RETIRING), (Step.RETIRING, Step.NONE)):
        world.now += OVERLAP - SECOND
        assert world.settle().step == before
        world.now += SECOND
        assert world.settle().step == after


@pytest.mark.parametrize(
    ("brokers", "words"),
    [
        (5, "brokers 0, 1, 2, 3, 4 trust"),
        (6, "brokers 0, 1, 2, 3, 4 and 1 more trust"),
        (8, "brokers 0, 1, 2, 3, 4 and 3 more trust"),
    ],
)
def test_brokers_that_a_step_waits_for_are_named(brokers: int, words: str) -> None:
    world = World(wanted(brokers))
    world.settle()
    world.now += DAY
    world.stale = set(range(brokers))
    world.want = wanted(brokers, rotate=True)
    world.reconcile()
    world.want = wanted(brokers)
    world.now += OVERLAP
    assert world.reconcile().waits == f"waiting until {words} the new authority"


def test_certificate_in_its_last_hour_counts_as_expired() -> None:
    issued = authority(BEGIN)
    last = issued.ends_at - timedelta(hours=1)
    assert lasts(issued, last - SECOND)
    assert not lasts(issued, last)
    assert not lasts(issued, issued.starts_at - SECOND)


def test_certificate_is_due_if_another_one_lasts_longer() -> None:
    issuer, life = authority(BEGIN, 100 * DAY), 90 * DAY

    def issued(now: datetime) -> Issued:
        return issue(issuer, named("broker-0"), frozenset({"b.example.com"}), now, life, is_server=True)

    there = issued(BEGIN)
    assert is_due(there, issuer, there.renewal_at, life)
    assert not is_due(there, issuer, there.renewal_at - SECOND, life)
    left = there.ends_at - there.renewal_at
    assert not is_due(there, issuer, there.renewal_at, left)
    assert is_due(there, issuer, there.renewal_at, left + SECOND)
    last = issued(BEGIN + 50 * DAY)
    assert last.ends_at == issuer.ends_at
    assert not is_due(last, issuer, last.renewal_at, life)
    assert is_due(there, authority(BEGIN), BEGIN, life), "of another authority"


def test_authority_is_replaced_at_two_thirds_of_its_life() -> None:
    world = World()
    world.settle()
    (old,) = world.found.authorities
    world.now = old.renewal_at - SECOND
    assert world.reconcile().authorities == (old,)
    world.now = old.renewal_at
    assert len(world.reconcile().authorities) == 2


def test_only_the_newest_two_authorities_of_a_restored_secret_count() -> None:
    world = World()
    world.settle()
    old, new = authority(BEGIN), authority(BEGIN)
    world.found = replace(world.found, authorities=(*world.found.authorities, old, new))
    assert world.found.authorities[0] not in world.reconcile().authorities


def test_expired_authority_is_not_trusted_from_its_end_on() -> None:
    world = World()
    world.settle()
    (old,) = world.found.published
    for moment, is_trusted in (
        (old.certificate.not_valid_after_utc - SECOND, True),
        (old.certificate.not_valid_after_utc, False),
    ):
        target = plan(replace(world.found, served=dict.fromkeys(world.brokers)), world.want, moment)
        assert (old.certificate in target.trusted) is is_trusted


def test_times_of_a_clock_that_was_ahead_are_corrected() -> None:
    """Otherwise a new authority would wait for years."""
    world = World()
    world.now += 50 * DAY
    world.settle()
    world.want = wanted(rotate=True)
    world.reconcile()
    world.want = wanted()
    world.now -= 40 * DAY
    target = world.reconcile()
    assert all(each.since <= world.now for each in target.published)


def test_end_of_use_on_a_clock_that_was_ahead_is_corrected() -> None:
    world = World()
    world.settle()
    world.want = wanted(rotate=True)
    world.reconcile()
    world.want = wanted()
    world.settle()
    world.now += OVERLAP
    assert world.settle().step == Step.RETIRING
    world.now -= 3 * DAY
    unused = [each.unused_since for each in world.reconcile().published if each.unused_since is not None]
    assert unused == [world.now]


def test_certificates_are_issued_once_for_a_new_authority() -> None:
    world = World()
    world.settle()
    before = world.found.certificates
    world.now += DAY
    world.want = wanted(rotate=True)
    world.reconcile()
    world.want = wanted()
    once = world.found.certificates
    assert once != before
    world.read()
    assert world.settle().certificates == once


def test_second_request_waits_for_the_first() -> None:
    world = World()
    world.settle()
    world.want = wanted(rotate=True)
    assert world.reconcile().rotated
    assert not world.reconcile().rotated
    assert len(world.found.authorities) == 2


@pytest.mark.parametrize("lost", ["authorities", "published", "certificates"])
def test_lost_secret_is_replaced_without_a_client_that_cannot_verify(lost: str) -> None:
    world = World()
    world.settle()
    world.now += 30 * DAY
    nothing: object = {} if lost == "certificates" else ()
    world.found = replace(world.found, **{lost: nothing})  # type: ignore[arg-type]
    for _ in range(30):
        world.reconcile()
        world.check()
        world.read()
        world.check()
        world.now += DAY
    assert len(world.found.authorities) == len(world.found.published) == 1


def test_retired_authority_is_not_trusted_again_by_a_restored_secret() -> None:
    """Restored authorities in the brokers' Secret count only for certificates that are in use."""
    world = World()
    world.settle()
    stranger = authority(world.now).certificate
    world.found = replace(world.found, trusted=(*world.found.trusted, stranger))
    assert stranger not in world.settle().trusted


def test_missing_name_is_added_at_once_and_an_extra_one_stays() -> None:
    world = World()
    world.settle()
    world.want = wanted(extra="new.example.com")
    assert "new.example.com" in names_of(world.settle().certificates[0].certificate)
    before = world.found.certificates
    world.want = wanted()
    assert world.settle().certificates == before


def test_new_broker_during_a_rotation_has_a_certificate_of_the_old_authority() -> None:
    world = World()
    world.settle()
    old = world.found.authorities[0].certificate
    world.want = wanted(rotate=True)
    world.reconcile()
    world.want = wanted(4)
    assert has_issued(old, world.settle().certificates[3].certificate)


def test_without_an_own_authority_nothing_is_issued() -> None:
    with pytest.raises(NoAuthority):
        plan(Found(), wanted(own=True), BEGIN)


def test_own_authority_replaced_by_another_issues_after_the_overlap() -> None:
    """The key of the old one is gone: brokers keep its certificates while clients learn of the new one."""
    first, second = authority(BEGIN), authority(BEGIN)
    world = World(wanted(own=True))
    world.found = replace(world.found, authorities=(first,))
    world.settle()
    world.found = replace(world.found, authorities=(second,))
    target = world.settle()
    assert target.trusted == tuple(sorted((first.certificate, second.certificate), key=fingerprint))
    assert has_issued(first.certificate, target.certificates[0].certificate)
    for _ in range(3):
        world.now += OVERLAP
        world.reconcile()
        world.check()
        world.read()
    assert world.settle().trusted == (second.certificate,)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 60)),
        st.tuples(st.just("away"), st.integers(60, 700)),
        st.tuples(st.just("crash"), st.integers(0, 2)),
        st.tuples(st.just("rotate"), st.just(0)),
        st.tuples(st.just("stale"), st.integers(0, 2)),
        st.tuples(st.just("brokers"), st.integers(1, 4)),
        st.tuples(st.just("restore"), st.sampled_from([0, 1, 2, 3])),
    ),
    max_size=15,
)
PARTS = ("authorities", "published", "certificates", "all")


@given(EVENTS)
@settings(max_examples=30, deadline=None)
def test_whatever_happens_published_authorities_verify_what_brokers_serve(
    events: list[tuple[str, int]],
) -> None:
    """Crashes between writes, older copies, brokers that do not read, absences, rotations, fewer and more brokers."""
    world = World()
    world.settle()
    copy = world.found
    for event, value in events:
        if event in ("pass", "away"):
            step = 1 if event == "pass" else value
            for _ in range(value if event == "pass" else 1):
                world.now += step * DAY
                world.reconcile()
                world.check([each.certificate for each in world.found.published])
                world.read()
        elif event == "crash":
            world.reconcile(writes=value)
            world.check([each.certificate for each in world.found.published])
        elif event == "rotate":
            world.want = replace(world.want, rotate=True)
            world.reconcile()
            world.want = replace(world.want, rotate=False)
        elif event == "stale":
            world.stale ^= {value}
        elif event == "brokers":
            world.want = replace(world.want, names=wanted(value).names)
            world.brokers = {number: each for number, each in world.brokers.items() if number < value}
        elif PARTS[value] == "all":
            # nobody knows the newer authority any more, but brokers read the older files, too
            world.found = copy
            world.brokers = {
                number: copy.certificates[number] for number in copy.certificates.keys() & world.want.names
            }
        else:
            # as someone restores one Secret: the operator reconciles before brokers read
            part = PARTS[value]
            world.found = replace(world.found, **{part: getattr(copy, part)})
            if part == "certificates":
                world.found = replace(world.found, trusted=copy.trusted)
        world.reconcile()
        world.check([each.certificate for each in world.found.published])
        world.read()
        world.check()
    world.stale = set()
    world.settle()
    for _ in range(40):
        world.now += DAY
        world.reconcile()
        world.read()
    assert world.reconcile().step is Step.NONE or world.steps[-1] is not Step.REISSUED
    assert all(each.is_valid(world.now) for each in world.brokers.values())
