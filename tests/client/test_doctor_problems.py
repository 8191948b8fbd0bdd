"""`millstream doctor` with unreachable addresses, brokers of other versions, and wrong clocks."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import transactions
from millstream.clocks import partition_of
from millstream.topics import create_topic
from millstream_broker.coordinator.partitioner import partition_for
from millstream_harness.broker import fixed_port
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.doctor import SkewedBroker, all_findings, findings, served
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

StartBroker = Callable[..., InProcessBroker]


def problems(found: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    return {(one["step"], one["subject"]): one["problem"] for one in found if one["problem"]}


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port whose queue of connections is full: it neither accepts nor refuses."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_names_and_ports(silent_port: int) -> None:
    assert findings("no-such-host.invalid:9092")["name"]["problem"].startswith("unknown host (")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        found = findings(f"127.0.0.1:{held.getsockname()[1]}")
    assert found["port"]["problem"].startswith("connection refused; is the broker up")
    assert set(found) == {"name", "port"}
    found = findings(f"127.0.0.1:{silent_port}")
    assert found["port"]["problem"].startswith("no answer within 3 s; is the broker up")
    assert set(found) == {"name", "port"}


def test_one_good_address_among_bad_ones(shared_broker: InProcessBroker) -> None:
    """The doctor names each bad address with its problem, and continues at the good one."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        refused = f"127.0.0.1:{held.getsockname()[1]}"
        found = all_findings(f"no-such-host.invalid:9092,{refused},{shared_broker.bootstrap}")
    assert set(problems(found)) == {("name", "no-such-host.invalid"), ("port", refused)}
    good = [one["step"] for one in found if one["subject"] == shared_broker.bootstrap]
    assert good == ["port", "protocol", "versions", "advertised"]
    assert [one for one in found if one["step"] == "metadata"]


def advertising(address: str) -> tuple[str, dict[str, str]]:
    """A second listener of a broker, and the configuration that advertises this address to its clients."""
    port = fixed_port()
    own, clients = f"PLAINTEXT://127.0.0.1:{fixed_port()}", f"CLIENTS://127.0.0.1:{port}"
    return f"127.0.0.1:{port}", {
        "listeners": f"{own},{clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": f"{own},CLIENTS://{address}",
    }


def test_an_address_that_is_advertised_and_leads_nowhere(start_broker: StartBroker, silent_port: int) -> None:
    for advertised, reason in (
        ("no-such-host.invalid:9092", "no-such-host.invalid: unknown host"),
        (f"127.0.0.1:{silent_port}", "no answer"),
    ):
        bootstrap, config = advertising(advertised)
        start_broker(config)
        found = findings(bootstrap)
        assert list(found) == ["name", "port", "protocol", "versions", "metadata"]
        assert found["metadata"]["problem"] == (
            f"{bootstrap} answers, but the addresses that its brokers advertise do not: "
            f"{advertised} ({reason}): set advertised.listeners to addresses that clients reach"
        )


def test_a_broker_among_others_whose_advertised_address_leads_nowhere(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    cluster = ClusterProcesses(tmp_path, 2, zookeeper=shared_zookeeper)
    bad, port = cluster.broker(2), fixed_port()
    bootstrap, config = advertising(f"127.0.0.1:{port}")
    bad.config |= config
    cluster.brokers[2] = bad
    good = cluster.brokers[1].config["listeners"].removeprefix("PLAINTEXT://")
    cluster.brokers[1].config |= {
        "listeners": f"PLAINTEXT://127.0.0.1:{fixed_port()},CLIENTS://{good}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with cluster:
        for first in (good, bootstrap):
            found = all_findings(first)
            assert problems(found) == {
                ("advertised", f"127.0.0.1:{port}"): "broker 2 advertises it: connection refused; "
                "set advertised.listeners to what clients reach"
            }
            (other,) = (one for one in found if one["step"] == "advertised" and not one["problem"])
            assert (other["subject"], other["fact"]) == (good, "broker 1")


Versions = dict[int, tuple[int, int]]
TODAY: Versions = {0: (0, 12), 1: (4, 17), 3: (0, 13), 8: (2, 9), 11: (2, 9), 18: (0, 4)}
"""Produce, Fetch, Metadata, OffsetCommit, JoinGroup and ApiVersions of Apache Kafka 4."""


def broker_of(versions: Versions, error: int = 0) -> Callable[[socket.socket], object]:
    """A server that only responds to ApiVersions v0."""

    def answer(connection: socket.socket) -> None:
        request = connection.recv(1000)
        if len(request) < 12 or request[4:8] != struct.pack(">hh", 18, 0):
            return
        (correlation,) = struct.unpack_from(">i", request, 8)
        body = struct.pack(">ihi", correlation, error, len(versions))
        body += b"".join(struct.pack(">hhh", key, *range_) for key, range_ in versions.items())
        connection.sendall(struct.pack(">i", len(body)) + body)
        connection.recv(1000)

    return answer


@pytest.mark.parametrize(
    ("versions", "error", "problem"),
    [
        (
            {0: (0, 2), 1: (0, 3), 3: (0, 2), 8: (0, 2), 11: (0, 1), 18: (0, 0)},
            0,
            "it is too old: it lacks Produce 3, Fetch 4, Metadata 4; upgrade it",
        ),
        (
            {18: (0, 0)},
            0,
            "it is too old: it lacks Produce 3, Fetch 4, Metadata 4, OffsetCommit 2, JoinGroup 1; upgrade it",
        ),
        (
            TODAY | {0: (11, 14), 11: (6, 12)},
            0,
            "it is too new for this client: it speaks Produce from 11, this client to 10, "
            "JoinGroup from 6, this client to 5; upgrade confluent-kafka",
        ),
        (
            {18: (4, 9)},
            35,
            "it is too new for this client: it speaks ApiVersions from 4, this client to 3; upgrade confluent-kafka",
        ),
    ],
)
def test_versions_that_do_not_meet(versions: Versions, error: int, problem: str) -> None:
    with served(broker_of(versions, error)) as address:
        found = findings(address)
    assert list(found) == ["name", "port", "protocol", "versions"]
    assert found["versions"]["problem"] == problem


def test_transactional_id_at_a_broker_with_transactions(shared_broker: InProcessBroker) -> None:
    found = all_findings(shared_broker.bootstrap, status=0, transactional_id="orders-1")
    assert not [one["step"] for one in found if one["problem"]]


def test_transactional_id_without_transactions() -> None:
    config, versions = {transactions.KEY: "orders-1"}, {transactions.ADD_PARTITIONS_TO_TXN: (0, 5)}
    assert transactions.problem(config, {}).startswith(
        "it has no transactions, and the client's transactional.id begins them; leave transactional.id out: "
    )
    assert not transactions.problem(config, versions)
    assert not transactions.problem({}, {})


def test_topics_that_a_consumer_subscribes_to(shared_broker: InProcessBroker) -> None:
    topic = unique("flights")
    create_topic(millstream.Cluster(shared_broker.bootstrap), topic, partitions=3)
    subscribed = (topic, f"{topic}x", "^no-such-.*", f"^{topic}$", "^(")
    options = [option for one in subscribed for option in ("--topic", one)]
    found = [one for one in all_findings(shared_broker.bootstrap, *options) if one["step"] == "topic"]
    assert [one["subject"] for one in found] == list(subscribed)
    assert [one["fact"] for one in found] == ["3 partitions", "", "", f"matches 1 topic, such as {topic}", ""]
    for one, problem in zip(
        found,
        (
            "",
            f"there is no topic of this name; did you mean {topic}? A consumer that subscribes to it waits, ",
            "the pattern matches none of ",
            "",
            "it is no regular expression: ",
        ),
        strict=True,
    ):
        assert one["problem"].startswith(problem)
        assert bool(one["problem"]) == bool(problem)


def test_versions_of_today_meet() -> None:
    with served(broker_of(TODAY)) as address:
        found = findings(address)
    assert list(found) == ["name", "port", "protocol", "versions", "metadata"]
    assert not found["versions"]["problem"]
    assert found["metadata"]["problem"].startswith(f"{address} does not answer as a Kafka broker (")


@pytest.mark.parametrize(("ahead_s", "said"), [(100, "100.0 s ahead of"), (-7200, "7200.0 s behind")])
def test_a_clock_that_is_wrong(tmp_path: Path, ahead_s: int, said: str) -> None:
    with SkewedBroker(tmp_path, ahead_s) as broker:
        found = all_findings(broker.bootstrap, "--clock")
        assert not problems(all_findings(broker.bootstrap, status=0))
    (problem,) = problems(found).values()
    whole, rest = said.split(" s ")
    assert problem.startswith("the clock of broker ")
    assert f" s {rest} this machine's; synchronise both (NTP)" in problem
    off = float(problem.split(" is ")[1].split(" s ")[0])
    assert off == pytest.approx(float(whole), abs=5)


def test_a_clock_that_is_wrong_on_one_of_two_brokers(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    cluster = ClusterProcesses(tmp_path, 2, zookeeper=shared_zookeeper)
    wrong = SkewedBroker(tmp_path / "wrong", 100, cluster.brokers[2].config)
    cluster.brokers[2] = wrong
    with cluster:
        found = [one for one in all_findings(cluster.bootstrap, "--clock") if one["step"] == "clock"]
        right_at, wrong_at = (one.bootstrap for one in cluster.brokers.values())
    assert [one["subject"] for one in found] == [right_at, wrong_at]
    assert found[0]["fact"].startswith("broker 1, within ")
    assert not found[0]["problem"]
    assert found[1]["problem"].startswith("the clock of broker 2 is ")
    assert " s ahead of this machine's" in found[1]["problem"]


def test_a_group_is_made_for_the_coordinator_that_is_measured() -> None:
    for number in range(500):
        group = f"millstream-doctor-{number:08x}"
        assert partition_of(group, 50) == partition_for(group, 50)
