"""A new release of the operator: Clusters are upgraded one after the other, within their maintenance windows."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_harness.in_memory import in_memory, stored
from millstream_harness.manifests import cluster
from millstream_operator.models import Cluster, decode_as
from millstream_operator.models.conditions import ConditionType, Reason
from millstream_operator.models.keys import Key
from millstream_operator.models.maintenance import DAYS, MaintenanceWindow, next_window
from millstream_operator.models.roll import RollingPod
from millstream_operator.reconcile.cluster.plan import held_for_upgrade
from millstream_operator.reconcile.cluster.rolling import UPGRADE, restart_reasons
from millstream_operator.reconcile.cluster.upgrades import Upgrade, waits_for_window
from millstream_operator.resources.cluster import CONFIG_HASH, LISTENERS_HASH, TEMPLATE_HASH, USER_HASH
from millstream_operator.resources.images import Images
from millstream_operator.resources.owned import RELEASE, SPEC_HASH, digest
from millstream_operator.resources.volumes import UserIds, VolumeOwnership
from millstream_operator.state.context import Services

pytestmark = pytest.mark.process

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)  # a Sunday, as in_memory has it
TIMES = st.times().map(lambda time: time.strftime("%H:%M"))
WINDOWS = st.builds(
    lambda start, length, days: MaintenanceWindow(
        start=start,
        end=(datetime.strptime(start, "%H:%M") + timedelta(minutes=length)).strftime("%H:%M"),
        days=tuple(days),
    ),
    TIMES,
    st.integers(1, 24 * 60 - 1),
    st.lists(st.sampled_from(DAYS), unique=True),
)


@pytest.mark.parametrize(
    ("days", "start", "end", "expected"),
    [
        ((), "07:30", "09:00", ("2026-11-22T07:30", "2026-11-22T09:00")),
        ((), "09:00", "10:00", ("2026-11-22T09:00", "2026-11-22T10:00")),
        ((), "02:00", "08:00", ("2026-11-23T02:00", "2026-11-23T08:00")),
        (("Saturday",), "22:00", "09:00", ("2026-11-21T22:00", "2026-11-22T09:00")),
        (("Sunday",), "02:00", "06:00", ("2026-11-29T02:00", "2026-11-29T06:00")),
        (("Monday", "Friday"), "02:00", "06:00", ("2026-11-23T02:00", "2026-11-23T06:00")),
    ],
)
def test_the_next_window(days: Any, start: str, end: str, expected: tuple[str, str]) -> None:
    found = next_window([MaintenanceWindow(start=start, end=end, days=days)], NOW)
    assert tuple(one.strftime("%Y-%m-%dT%H:%M") for one in found) == expected


@given(st.lists(WINDOWS, min_size=1, max_size=4), st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)))
def test_there_is_always_a_window_within_a_week(windows: list[MaintenanceWindow], moment: datetime) -> None:
    now = moment.replace(tzinfo=UTC)
    start, end = next_window(windows, now)
    assert now < end
    assert start <= now + timedelta(days=8)
    assert timedelta() < end - start < timedelta(days=1)


def a_cluster(name: str, *, upgrading: bool = False, **spec: Any) -> dict[str, Any]:
    said = {
        "type": "Upgrading",
        "status": "True",
        "reason": "Upgrading",
        "message": "",
        "lastTransitionTime": "",
    }
    manifest = cluster(name)
    return stored(
        {**manifest, "spec": {**manifest.get("spec", {}), **spec}},
        {"conditions": [said]} if upgrading else None,
    )


def upgrade(services: Services, name: str, ready: bool = True) -> Upgrade:
    found = services.store.get(Cluster, "ns", name)
    assert found is not None
    return Upgrade(services, found, ready)


def reason(one: Upgrade) -> Reason:
    one.may()
    assert one.said is not None
    assert one.said[0] is ConditionType.UPGRADING
    return one.said[2]


def test_clusters_take_turns() -> None:
    services = in_memory(a_cluster("east"), a_cluster("west")).services
    first, second = upgrade(services, "east"), upgrade(services, "west")
    assert first.may()
    assert not second.may()
    assert second.said is not None
    assert second.said[3] == "the upgrade waits for that of Cluster ns/east"
    for one in (first, second):
        one.end(True)
    assert not upgrade(services, "west").may(), "the first one goes on"
    upgrade(services, "east", ready=False).end(False)
    assert not upgrade(services, "west").may(), "its last broker is not ready"
    upgrade(services, "east").end(True)
    assert services.store.take_woken() == {Key("Cluster", "ns", "west")}
    assert upgrade(services, "west").may()


def test_a_cluster_that_is_gone_or_paused_keeps_no_turn() -> None:
    services = in_memory(a_cluster("east"), a_cluster("west")).services
    assert upgrade(services, "east").may()
    services.store.remove(Key("Cluster", "ns", "east"), "u-east")
    assert upgrade(services, "west").may()
    services.upgrade_queue.leave(services.store, Key("Cluster", "ns", "west"))
    services.store.put(a_cluster("east"))
    assert upgrade(services, "east").may()


def test_after_a_restart_of_the_operator_the_one_that_it_was_at_goes_on() -> None:
    services = in_memory(a_cluster("east"), a_cluster("west", upgrading=True)).services
    assert reason(upgrade(services, "east")) is Reason.WAITING_FOR_CLUSTER
    assert upgrade(services, "west", ready=False).may()


def test_only_a_restart_of_the_operator_takes_the_turn_from_a_status() -> None:
    services = in_memory(a_cluster("east", upgrading=True), a_cluster("west")).services
    assert reason(upgrade(services, "west")) is Reason.WAITING_FOR_CLUSTER
    services.upgrade_queue.leave(services.store, Key("Cluster", "ns", "east"))  # but its status stays
    assert upgrade(services, "west").may()


def test_the_turn_shows_until_all_brokers_are_ready_again() -> None:
    services = in_memory(a_cluster("east", upgrading=True), a_cluster("west")).services
    last = upgrade(services, "east", ready=False)
    last.end(False)
    assert last.said is not None
    assert last.said[:3] == (ConditionType.UPGRADING, True, Reason.UPGRADING)
    idle = upgrade(services, "west", ready=False)
    idle.end(False)
    assert idle.said is None


def test_a_cluster_with_a_broker_that_is_not_ready_does_not_begin() -> None:
    services = in_memory(a_cluster("east"), a_cluster("west")).services
    broken = upgrade(services, "east", ready=False)
    assert reason(broken) is Reason.BROKERS_STARTING
    broken.end(False)
    assert upgrade(services, "west").may(), "nor does it hold the others up"


def test_outside_its_window_a_cluster_waits_and_says_until_when() -> None:
    later = {"windows": [{"days": ["Sunday"], "start": "22:00", "end": "02:00"}]}
    services = in_memory(a_cluster("east", maintenance=later), a_cluster("west")).services
    waits = upgrade(services, "east")
    assert reason(waits) is Reason.OUTSIDE_MAINTENANCE_WINDOW
    assert waits.said is not None
    assert waits.said[3] == (
        "the upgrade waits for the maintenance window from 2026-11-22T22:00:00Z to 2026-11-23T02:00:00Z; to begin now: "
        "kubectl --namespace ns rollout restart statefulset/east-brokers"
    )
    assert upgrade(services, "west").may(), "nobody waits for it"
    found = decode_as(Cluster, a_cluster("east", maintenance=later))
    assert waits_for_window(found, NOW + timedelta(hours=14)) is None
    assert waits_for_window(found, NOW + timedelta(hours=18)) is not None


WANTED = {
    TEMPLATE_HASH: "2",
    CONFIG_HASH: "c",
    LISTENERS_HASH: "l",
    USER_HASH: "u",
    RELEASE: "new",
    SPEC_HASH: "s",
}


@pytest.mark.parametrize(
    ("pod", "reasons"),
    [
        ({}, ()),
        ({RELEASE: "old"}, ()),  # a release that changes nothing
        ({TEMPLATE_HASH: "1"}, ("PodTemplateChanged",)),
        ({TEMPLATE_HASH: "1", RELEASE: "old"}, (UPGRADE,)),
        ({TEMPLATE_HASH: "1", RELEASE: "old", SPEC_HASH: "t"}, ("PodTemplateChanged",)),
        ({CONFIG_HASH: "d"}, ("ConfigurationChanged",)),
        ({CONFIG_HASH: "d", RELEASE: "old"}, (UPGRADE,)),
        ({CONFIG_HASH: "d", RELEASE: "old", USER_HASH: "v"}, ("ConfigurationChanged",)),
        ({TEMPLATE_HASH: "1", CONFIG_HASH: "d", RELEASE: "old"}, (UPGRADE,)),
        (
            {TEMPLATE_HASH: "1", CONFIG_HASH: "d", RELEASE: "old", USER_HASH: "v"},
            ("ConfigurationChanged",),
        ),
        ({LISTENERS_HASH: "m", TEMPLATE_HASH: "1", RELEASE: "old"}, (UPGRADE,)),
        (
            {LISTENERS_HASH: "m", TEMPLATE_HASH: "1", RELEASE: "old", USER_HASH: "v"},
            ("ListenersChanged",),
        ),
        (
            {TEMPLATE_HASH: "1", RELEASE: "old", "kubectl.kubernetes.io/restartedAt": "earlier"},
            ("RestartRequested",),
        ),
    ],
)
def test_only_what_a_release_changes_is_an_upgrade(pod: dict[str, str], reasons: tuple[str, ...]) -> None:
    assert restart_reasons(0, {**WANTED, **pod}, WANTED) == reasons


def test_pods_of_before_releases_said_what_their_user_decided_are_upgraded() -> None:
    older = {key: value for key, value in WANTED.items() if key not in (USER_HASH, SPEC_HASH)}
    assert restart_reasons(0, {**older, CONFIG_HASH: "d", RELEASE: "old"}, WANTED) == (UPGRADE,)


def test_what_has_to_wait() -> None:
    services = in_memory(a_cluster("east"), a_cluster("west")).services
    pods = [
        RollingPod(0, "east-brokers-0", True, (UPGRADE,)),
        RollingPod(1, "east-brokers-1", False, (UPGRADE,)),
        RollingPod(2, "east-brokers-2", True, ("ConfigurationChanged",)),
    ]
    assert held_for_upgrade(pods, upgrade(services, "east").may, True) == pods
    assert held_for_upgrade(pods, upgrade(services, "east").may, False)[0].reasons == (), "ZooKeeper first"
    held = held_for_upgrade(pods, upgrade(services, "west").may, True)
    assert [pod.reasons for pod in held] == [(), (UPGRADE,), ("ConfigurationChanged",)]


def test_a_release_is_named_by_what_it_gives_every_cluster() -> None:
    names = {
        Images().release(),
        Images(zookeeper="other").release(),
        Images(broker="other").release(),
        Images(pull_policy="Always").release(),
        Images(broker_log_format="json").release(),
        Images(user_ids=UserIds.ASSIGNED).release(),
        Images().release(VolumeOwnership.FS_GROUP),
    }
    assert len(names) == 7
    assert Images().release() == Images(spark="other").release()
    services = dataclasses.replace(in_memory().services, volume_ownership=VolumeOwnership.FS_GROUP)
    assert services.release == Images().release(VolumeOwnership.FS_GROUP)


def test_a_field_that_a_new_release_adds_changes_no_spec() -> None:
    class Before(msgspec.Struct):
        size: str
        image: str | None = None

    class After(msgspec.Struct):
        size: str
        image: str | None = "new default"
        policy: str = "Fast"
        more: dict[str, int] = msgspec.field(default_factory=dict)

    assert digest([Before("1Gi")]) == digest([After("1Gi")])
    assert digest({"a": Before("1Gi")}) != digest({"a": After("1Gi", policy="Slow")})
    assert digest(After("1Gi")) != digest(After("2Gi"))
