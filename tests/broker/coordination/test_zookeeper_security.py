"""Brokers' sessions with a real ZooKeeper by TLS, by SASL and by both, and what is said when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from millstream_broker.cluster.joining import shared_store
from millstream_broker.config.config import BrokerConfig
from millstream_broker.coordination.stores import State, Store
from millstream_broker.coordination.stores.zookeeper import ZooKeeperStore
from millstream_harness.certificates import Authority
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.secured_zookeeper import USERS, SecuredZooKeeper, login

pytestmark = pytest.mark.soak

AUTHORITY = Authority()
OTHER = Authority("Other CA")
WRONG = login("broker", "not the secret")
Servers = Mapping[str, SecuredZooKeeper]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "other.pem").write_text(OTHER.pem)
    OTHER.issue("stranger").write(folder / "stranger.pem")
    found = {
        "plain": SecuredZooKeeper(folder / "plain"),
        "tls": SecuredZooKeeper(folder / "tls", authority=AUTHORITY),
        "mtls": SecuredZooKeeper(folder / "mtls", authority=AUTHORITY, needs_client_certificate=True),
        "sasl": SecuredZooKeeper(folder / "sasl", users=USERS, is_enforced=True),
        "both": SecuredZooKeeper(
            folder / "both", authority=AUTHORITY, needs_client_certificate=True, users=USERS, is_enforced=True
        ),
    }
    with ExitStack() as stack:
        for server in found.values():
            server.launch_server()
            stack.callback(server.kill)
        for server in found.values():
            server.await_serving()
        yield found


@asynccontextmanager
async def session_of(config: Mapping[str, str]) -> AsyncIterator[tuple[ZooKeeperStore, list[State]]]:
    open_store = shared_store(BrokerConfig({"zookeeper.session.timeout.ms": "60000", **config}))
    assert open_store is not None
    session = open_store()
    assert isinstance(session, ZooKeeperStore)
    states: list[State] = []
    session.on_state = lambda state, is_new: states.append(state)
    session.start()
    try:
        yield session, states
    finally:
        await session.close(5.0)


async def serves(session: Store) -> bool:
    await session.connected()
    await session.ensure("/a")
    return await session.get("/a") is not None


@pytest.mark.parametrize("name", ["tls", "mtls", "sasl", "both"])
async def test_a_broker_connects(name: str, servers: Servers) -> None:
    async with session_of(servers[name].config()) as (session, states):
        assert await serves(session)
        assert states == [State.CONNECTED]


@pytest.mark.parametrize(
    ("of", "to", "change", "problem"),
    [
        ("plain", "tls", {}, "expects TLS: set zookeeper.ssl.client.enable=true"),
        ("tls", "plain", {}, "does not serve TLS on this port"),
        ("tls", "mtls", {}, "requires a client certificate"),
        ("tls", "mtls", {"zookeeper.ssl.protocol": "TLSv1.2"}, "requires a client certificate"),
        (
            "tls",
            "mtls",
            {"zookeeper.ssl.keystore.location": "stranger.pem"},
            "refuses the broker's certificate",
        ),
        (
            "tls",
            "tls",
            {"zookeeper.ssl.truststore.location": "other.pem"},
            "has a certificate that the broker does not trust",
        ),
        ("sasl", "sasl", {"zookeeper.sasl.jaas.config": WRONG}, "refuses user broker: the password is wrong"),
        ("both", "both", {"zookeeper.sasl.jaas.config": WRONG}, "refuses user broker: the password is wrong"),
        ("plain", "sasl", {}, "require SASL: set zookeeper.sasl.jaas.config"),
    ],
)
async def test_the_reason_why_a_connection_fails_is_logged(
    of: str,
    to: str,
    change: dict[str, str],
    problem: str,
    servers: Servers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = servers[to]
    change = {
        key: str(server.folder.parent / value) if value.endswith(".pem") else value
        for key, value in change.items()
    }
    config = servers[of].config() | {"zookeeper.connect": server.own_tree()} | change
    async with session_of(config) as (session, _):
        connects = problem.startswith("require SASL")  # until its first request
        if connects:
            await session.connected()
            with pytest.raises(Exception, match="was lost before it answered"):
                await session.get("/a")
        await until(lambda: problem in caplog.text)
        assert connects or not session.is_connected
    assert USERS["broker"] not in caplog.text
    assert "not the secret" not in caplog.text


async def test_a_host_that_the_certificate_does_not_name_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SecuredZooKeeper(tmp_path / "z", authority=AUTHORITY, names=["elsewhere"]) as server:
        async with session_of(server.config()):
            await until(lambda: "certificate is not valid for '127.0.0.1'" in caplog.text)
        unverified = server.config(zookeeper_ssl_endpoint_identification_algorithm="")
        async with session_of(unverified) as (session, _):
            assert await serves(session)


async def test_another_authority_on_both_sides_keeps_the_session(tmp_path: Path) -> None:
    """The certificates of server and broker change; the broker does not restart."""
    server = SecuredZooKeeper(tmp_path / "z", authority=AUTHORITY, needs_client_certificate=True)
    with server:
        async with session_of(server.config()) as (session, states):
            assert await serves(session)
            before = session.session_id
            server.kill()
            await until(lambda: not session.is_connected)
            server.certify(OTHER)
            await asyncio.to_thread(server.start)
            assert await serves(session)
            assert session.session_id == before
            assert states == [State.CONNECTED, State.SUSPENDED, State.CONNECTED]


async def test_a_problem_of_several_servers_is_logged_once_for_each(
    servers: Servers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, problems = servers["sasl"], list[str]()
    both = f"127.0.0.1:{server.port},localhost:{server.port}/a"
    config = server.config() | {"zookeeper.connect": both, "zookeeper.sasl.jaas.config": WRONG}
    async with session_of(config) as (session, _):
        report = session._report

        def counted(problem: str) -> None:
            problems.append(problem)
            report(problem)

        monkeypatch.setattr(session, "_report", counted)
        await until(lambda: len(problems) >= 8 and len(set(problems)) == 2)
    logged = [one for one in caplog.messages if "refuses user broker" in one]
    assert len(logged) == len(set(logged)) == 2


async def test_credentials_that_become_valid_later_connect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = SecuredZooKeeper(tmp_path / "z", users={"broker": "old"}, is_enforced=True)
    config = {"zookeeper.sasl.jaas.config": login("broker", "new")}
    with server:
        async with session_of(server.config() | config) as (session, states):
            await until(lambda: "refuses user broker" in caplog.text)
            server.kill()
            server.users = {"broker": "new"}
            await asyncio.to_thread(server.start)
            assert await serves(session)
            assert states == [State.CONNECTED]


@asynccontextmanager
async def cutting_logins(server: SecuredZooKeeper, cuts: list[bool]) -> AsyncIterator[str]:
    """Address of a relay to the server. `cuts`, by connection: whether it ends at the client's second message, which
    begins the login; true beyond the list."""
    host, port = server.config()["zookeeper.connect"].split("/")[0].split(":")
    left = iter(cuts)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut = next(left, True)
        answers, requests = await asyncio.open_connection(host, int(port))

        async def back() -> None:
            while data := await answers.read(65536):
                writer.write(data)

        backwards = asyncio.create_task(back())
        try:
            for number in count():
                size = await reader.readexactly(4)
                message = await reader.readexactly(int.from_bytes(size, "big"))
                if cut and number == 1:
                    break
                requests.write(size + message)
        except asyncio.IncompleteReadError:
            pass
        finally:
            backwards.cancel()
            requests.close()
            writer.close()

    listener = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def test_a_server_that_stops_during_a_login_is_no_refusal(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    server = servers["sasl"]
    async with (
        cutting_logins(server, [True, True, False]) as address,
        session_of(server.config() | {"zookeeper.connect": f"{address}/a"}) as (session, states),
    ):
        assert await serves(session)
        assert states == [State.CONNECTED]
    assert "refuses user" not in caplog.text


async def test_a_login_that_is_never_answered_is_a_refusal(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    server = servers["sasl"]
    config = {**server.config(), "zookeeper.session.timeout.ms": "4000"}
    async with (
        cutting_logins(server, []) as address,
        session_of(config | {"zookeeper.connect": f"{address}/a"}) as (session, _),
    ):
        await until(lambda: "refuses user broker" in caplog.text)
        assert not session.is_connected


async def test_a_broker_by_tls_and_sasl_serves_across_kills_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = SecuredZooKeeper(
        tmp_path / "z", authority=AUTHORITY, needs_client_certificate=True, users=USERS, is_enforced=True
    )
    with server:
        config = server.config(zookeeper_session_timeout_ms="6000")
        async with running(tmp_path / "data", config) as broker, connected(broker) as client:
            await create(client, "before")
            for topic in ("after", "again"):
                server.kill()
                await until(lambda: "lost the connection" in caplog.text)
                await asyncio.to_thread(server.start)
                await create(client, topic)
                caplog.clear()
            assert set(broker.replicas.metadata.state.topics) == {"before", "after", "again"}
