"""Clients that connect in a loop fill no log: lines about connections are limited, and what is left out is counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.network.connection_lines import (
    BURST,
    PER_MINUTE,
    SHARE_OF_ADDRESS,
    SUMMARY_S,
    ConnectionLines,
    LineCause,
    LineKind,
)
from millstream_broker.runtime.stats import Stats
from millstream_harness.certificates import Authority, tls_keys
from millstream_harness.in_process import running
from millstream_harness.members import until
from millstream_harness.virtual_time import virtual_time
from millstream_kafka.protocol import api_versions

OF_ADDRESS = int(BURST * SHARE_OF_ADDRESS)
LOGIN = LineKind("CLIENTS", LineCause.LOGIN)
ATTEMPTS = OF_ADDRESS + 20


@virtual_time
async def test_one_address_has_a_quarter_of_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    stats = Stats()
    lines = ConnectionLines(asyncio.get_running_loop(), stats)
    for number in range(1000):
        lines.write(LOGIN, "10.0.0.7", logging.WARNING, "closed %d", number)
    lines.write(LOGIN, "10.0.0.8", logging.WARNING, "closed another")
    lines.write(LineKind("CLIENTS", LineCause.TLS), "10.0.0.7", logging.WARNING, "its handshake failed")
    lines.write(LineKind("INSIDE", LineCause.LOGIN), "10.0.0.7", logging.WARNING, "closed inside")
    lines.write(LOGIN._replace(detail="SCRAM-SHA-256"), "10.0.0.7", logging.WARNING, "another mechanism")
    first = [f"closed {number}" for number in range(OF_ADDRESS)]
    others = ["closed another", "its handshake failed", "closed inside", "another mechanism"]
    assert caplog.messages == [*first, *others]
    assert stats.lines_suppressed == {"login": 1000 - OF_ADDRESS}
    caplog.clear()
    await asyncio.sleep(SUMMARY_S + 1)
    left_out = 1000 - OF_ADDRESS
    assert caplog.messages == [
        f"listener CLIENTS: {left_out} lines about connections were left out (cause: login),"
        f" most of them: {left_out} of 10.0.0.7"
    ]
    caplog.clear()
    await asyncio.sleep(2 * SUMMARY_S)
    assert caplog.messages == [], "nothing was left out since"
    for _ in range(OF_ADDRESS + 1):
        lines.write(LOGIN, "10.0.0.7", logging.WARNING, "closed again")
    await asyncio.sleep(SUMMARY_S + 1)
    assert caplog.messages.count("closed again") < OF_ADDRESS + 1
    assert "lines about connections were left out" in caplog.messages[-1]


@virtual_time
async def test_a_summary_names_the_three_addresses_with_the_most_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = ConnectionLines(asyncio.get_running_loop(), Stats())
    for last, count in ((1, 5), (2, 20), (3, 10), (4, 15)):
        for _ in range(OF_ADDRESS + count):
            lines.write(LOGIN, f"10.0.0.{last}", logging.WARNING, "closed")
    lines.summarise()
    assert caplog.messages[-1] == (
        "listener CLIENTS: 50 lines about connections were left out (cause: login),"
        " most of them: 20 of 10.0.0.2, 15 of 10.0.0.4, 10 of 10.0.0.3"
    )


@virtual_time
async def test_a_flood_from_everywhere_has_a_limit_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    lines = ConnectionLines(asyncio.get_running_loop(), Stats())
    for second in range(600):
        for number in range(20):
            lines.write(LOGIN, f"10.0.{second % 256}.{number}", logging.WARNING, "closed")
        await asyncio.sleep(1)
    lines.summarise()
    closed, summaries = (
        caplog.messages.count("closed"),
        len(caplog.messages) - caplog.messages.count("closed"),
    )
    assert closed == BURST + 10 * PER_MINUTE - 1  # the last second's part of a line
    assert summaries == 10
    total = sum(int(each.split()[2]) for each in caplog.messages if each != "closed")
    assert closed + total == 600 * 20


@virtual_time
async def test_a_network_of_ipv6_is_one_address(caplog: pytest.LogCaptureFixture) -> None:
    lines = ConnectionLines(asyncio.get_running_loop(), Stats())
    for number in range(1000):
        lines.write(LOGIN, f"2001:db8:0:1::{number:x}", logging.WARNING, "closed")
    assert caplog.messages == ["closed"] * OF_ADDRESS
    lines.summarise()
    assert "of 2001:db8:0:1::/64" in caplog.messages[-1]


@virtual_time
async def test_lines_below_the_level_count_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stats = Stats()
    lines = ConnectionLines(asyncio.get_running_loop(), stats)
    for _ in range(1000):
        lines.write(LOGIN, "10.0.0.7", logging.INFO, "ended")
    lines.write(LOGIN, "10.0.0.7", logging.WARNING, "closed")
    assert caplog.messages == ["closed"]
    assert not stats.lines_suppressed


async def attempt(broker: Broker, listener: str, data: bytes, host: str = "127.0.0.1") -> None:
    """Connect from an address, send something, and wait for the end."""
    (record,) = broker.replicas.metadata.state.brokers.values()
    (port,) = (each.port for each in record.listeners if each.name == listener)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write(data)
    with contextlib.suppress(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_a_hostile_client_hides_no_other_in_a_brokers_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends rubbish where a login is due, plain text instead of TLS, and unknown requests, in a loop."""
    authority = Authority()
    (tmp_path / "ca.pem").write_text(authority.pem)
    names = {"LOGIN": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "OPEN": "PLAINTEXT"}
    config = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in names.items()),
        "inter.broker.listener.name": "OPEN",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": "0",
        "audit.log": "off",
        **tls_keys(authority.issue().write(tmp_path / "broker.pem"), tmp_path / "ca.pem"),
    }
    caplog.set_level(logging.INFO)
    rubbish = b"\0\0\0\x0a" + b"\x7f" * 10
    async with running(tmp_path / "data", config) as broker:
        for name in names:
            for _ in range(ATTEMPTS):
                await attempt(broker, name, rubbish)
            await attempt(broker, name, rubbish, "127.0.0.2")
        await until(lambda: broker.stats.lines_suppressed.total() == 3 * (ATTEMPTS - OF_ADDRESS))
        assert broker.stats.lines_suppressed == dict.fromkeys(
            ("login", "tls", "request"), ATTEMPTS - OF_ADDRESS
        )
        for name in names:
            of_listener = [each for each in caplog.messages if f"on listener {name}: " in each]
            assert len(of_listener) == OF_ADDRESS + 1
            assert "127.0.0.2" in of_listener[-1]
    summaries = [each for each in caplog.messages if "were left out" in each]
    assert sorted(each.split(":")[0] for each in summaries) == sorted(f"listener {name}" for name in names)


async def test_a_wrong_password_in_a_loop_hides_no_other_mechanism(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind one address, such as that of a load balancer."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = {
        "listeners": "LOGIN://127.0.0.1:0,OPEN://127.0.0.1:0",
        "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT,OPEN:PLAINTEXT",
        "inter.broker.listener.name": "OPEN",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.login.plain.sasl.jaas.config": f'{plain} required user_alice="a";',
        "connection.failed.authentication.delay.ms": "0",
        "audit.log": "off",
    }
    caplog.set_level(logging.INFO)

    def login(mechanism: bytes, token: bytes) -> bytes:
        chosen = bytes.fromhex("0011000100000001ffff") + len(mechanism).to_bytes(2, "big") + mechanism
        sent = bytes.fromhex("0024000000000002ffff") + len(token).to_bytes(4, "big") + token
        return b"".join(len(each).to_bytes(4, "big") + each for each in (chosen, sent))

    async with running(tmp_path, config) as broker:
        for number in range(ATTEMPTS):  # of many users, as the same one would be slowed
            await attempt(broker, "LOGIN", login(b"PLAIN", b"\0%d\0b" % number))
        assert broker.stats.lines_suppressed["login"] > 0
        await attempt(broker, "LOGIN", login(b"SCRAM-SHA-256", b"rubbish"))
    assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in caplog.text


async def test_stacks_of_failures_are_limited_by_api(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    async with running(tmp_path) as broker:
        registration = broker.server.handlers[api_versions.API.key]
        monkeypatch.setattr(type(registration), "handle", fails)
        request = bytes.fromhex("0012000000000001ffff")
        for _ in range(ATTEMPTS):
            await attempt(broker, "PLAINTEXT", len(request).to_bytes(4, "big") + request)
        await until(lambda: broker.stats.lines_suppressed["failure"] == ATTEMPTS - OF_ADDRESS)
    assert caplog.text.count("RuntimeError: a bug") == OF_ADDRESS
