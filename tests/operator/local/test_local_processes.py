"""Daemons of the local runtime, their stored state, and their ports."""

from __future__ import annotations

import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millstream_harness.broker import fixed_port
from millstream_operator.local import ports, processes
from millstream_operator.local.clusters import LocalCluster
from millstream_operator.local.processes import Daemon, StartFailed
from millstream_operator.local.state import State, StateError, Store

pytestmark = pytest.mark.process

SERVE = "import time; print('hello'); print('ready: a=1 http=h:2', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVE


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Daemon]]:
    found: list[Daemon] = []
    yield found
    for daemon in found:
        processes.stop(daemon, timeout=0.1)


def start(script: str, log: Path, timeout: float = 30.0) -> Daemon:
    return processes.start([sys.executable, "-c", script], log, timeout=timeout)


def test_a_daemon_says_when_it_is_ready_and_stops(tmp_path: Path, started: list[Daemon]) -> None:
    log = tmp_path / "logs" / "one.log"
    daemon = start(SERVE, log)
    started.append(daemon)
    assert daemon.ready == {"a": "1", "http": "h:2"}
    assert log.read_text().startswith("hello\n")
    assert daemon.alive
    assert os.getsid(daemon.pid) == daemon.pid  # its own session: a closed terminal does not end it
    assert processes.stop(daemon) is True
    assert not daemon.alive
    assert processes.stop(daemon) is False


def test_a_daemon_that_does_not_obey_is_killed(tmp_path: Path, started: list[Daemon]) -> None:
    daemon = start(STUBBORN, tmp_path / "log")
    started.append(daemon)
    assert processes.stop(daemon, timeout=0.2)
    assert not daemon.alive


def test_a_process_that_has_our_pid_by_chance_is_not_ours(tmp_path: Path, started: list[Daemon]) -> None:
    daemon = start(SERVE, tmp_path / "log")
    started.append(daemon)
    stale = msgspec.structs.replace(daemon, started="another boot:1")
    assert not stale.alive
    assert processes.stop(stale) is False
    assert daemon.alive


def test_a_killed_daemon_is_not_alive(tmp_path: Path, started: list[Daemon]) -> None:
    daemon = start(SERVE, tmp_path / "log")
    started.append(daemon)
    os.kill(daemon.pid, signal.SIGKILL)
    assert processes.wait_for(lambda: not daemon.alive, 60.0)


def test_where_there_is_no_proc_ps_tells_when_a_process_began(tmp_path: Path, started: list[Daemon]) -> None:
    daemon = start(SERVE, tmp_path / "log")
    started.append(daemon)
    token = processes._started_at_by_ps(daemon.pid)
    assert token == processes._started_at_by_ps(daemon.pid) is not None
    processes.stop(daemon)
    assert processes._started_at_by_ps(daemon.pid) is None


def test_a_daemon_is_found_though_its_pid_was_never_noted(tmp_path: Path, started: list[Daemon]) -> None:
    command = [sys.executable, "-c", SERVE]
    daemon = processes.start(command, tmp_path / "log", mark="of-this-one")
    started.append(daemon)
    intended = Daemon(0, "", command, str(tmp_path / "log"), mark="of-this-one")
    assert not intended.alive
    store = Store(tmp_path)
    store.save(State(1, daemons={"a": intended, "b": msgspec.structs.replace(intended, mark="of-none")}))
    (found,) = store.load().daemons.values()
    assert (found.pid, found.started, found.alive, found.serves) == (daemon.pid, daemon.started, True, False)
    assert processes._marked_by_ps(f"{processes.MARK}=of-this-one") == [daemon.pid]
    assert processes.stop(found)
    assert store.load().daemons == {}


@pytest.mark.parametrize("moment", ["posix_spawnp", "waitpid"])
def test_a_start_that_is_interrupted_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The signal comes just before or just after the pid is known."""
    call = getattr(os, moment)

    def interrupted(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(os, moment, call)
        found = call(*arguments, **more)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(os, moment, interrupted)
    mark = uuid.uuid4().hex
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            processes.start([sys.executable, "-c", SERVE], tmp_path / "log", mark=mark)
        assert processes.found(Daemon(0, "", [], "", mark=mark)) is None
    finally:
        signal.signal(signal.SIGINT, before)
        processes.stop_marked(mark)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "print('one\\n\\ntwo'); raise SystemExit('port 1 is in use')",
            "ended before it was ready: one | two | port",
        ),
        ("pass", "ended before it was ready: it said nothing"),
        ("import time; print('ready: half', end='', flush=True); time.sleep(600)", "was not ready in 1 s"),
    ],
)
def test_a_daemon_that_does_not_get_ready_is_gone_and_says_why(
    tmp_path: Path, script: str, message: str
) -> None:
    with pytest.raises(StartFailed) as raised:
        start(script, tmp_path / "log", timeout=1.0 if "half" in script else 30.0)
    assert message in str(raised.value)


def test_what_was_said_before_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ready: old=1\n")
    with pytest.raises(StartFailed):
        start("pass", log)


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="/no/such/command cannot be started: No such file"):
        processes.start(["/no/such/command"], tmp_path / "log")


def test_state_is_kept_and_resources_have_generations(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load().resources == {}
    state = State(version=1)
    topic = {"apiVersion": "v", "kind": "Topic", "metadata": {"name": "t"}, "spec": {"partitions": 1}}
    first = state.apply(topic)
    first["status"] = {"partitions": 1}
    first["metadata"]["finalizers"] = ["f"]
    state.daemons["broker/default/west/0"] = Daemon(1, "token", ["x"], "log", {"http": "h:1"})
    with store.locked():
        store.save(state)
    again = store.load()
    same = again.apply(topic)
    assert same["metadata"] == first["metadata"]
    assert same["status"] == {"partitions": 1}
    grown = again.apply({**topic, "spec": {"partitions": 2}})
    assert grown["metadata"]["generation"] == 2
    assert grown["metadata"]["uid"] == first["metadata"]["uid"]
    assert again.daemons == state.daemons


def test_a_data_folder_is_used_by_one_at_a_time(tmp_path: Path) -> None:
    words = f"is in use by another `millstream local` .process {os.getpid()}."
    with Store(tmp_path).locked(), pytest.raises(StateError, match=words), Store(tmp_path).locked():
        pass
    with Store(tmp_path).locked():
        pass


def test_a_data_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be written"), Store(tmp_path / "file").locked():
        pass
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(StateError, match=r"state\.json cannot be read"):
        Store(tmp_path).load()


def test_ports_are_those_asked_for_or_the_next_free_ones() -> None:
    used = {9092, 9094}
    free = lambda port: port not in used  # noqa: E731
    asked = [("internal", 9092), ("external", 9094), ("http", 9404)]
    chosen = ports.choose(asked, {}, [9404], free)
    assert chosen == {"internal:9092": 9093, "external:9094": 9095, "http:9404": 9405}
    used.clear()
    assert ports.choose(asked, chosen, [], free) == chosen  # clients find it at its old address
    used.add(9093)
    assert ports.choose(asked, chosen, [], free)["internal:9092"] == 9092
    # No listener gets a port that was just given to another.
    assert ports.choose([("a", 9092), ("b", 9092)], {}, [], free) == {"a:9092": 9092, "b:9092": 9094}


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as taken:
        port = fixed_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_a_port_that_another_process_had_for_a_moment_is_tried_again() -> None:
    """It was free when it was chosen, taken when the broker wanted it, and is free again."""
    failures = [
        "http.listener=127.0.0.1:9404: cannot listen there: Address already in use. Stop the process",
        "",
    ]
    owner: Any = SimpleNamespace(data=SimpleNamespace(stop=lambda key: None), state=SimpleNamespace(ports={}))

    def launch() -> None:
        if words := failures.pop(0):
            raise StartFailed(words)

    LocalCluster._launch(owner, "broker/default/west/0", [("http", fixed_port())], launch)
    assert failures == []
    failures = ["log.dirs: no space left", ""]
    with pytest.raises(StartFailed, match="no space left"):
        LocalCluster._launch(owner, "broker/default/west/0", [("http", fixed_port())], launch)
