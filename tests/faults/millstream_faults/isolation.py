"""Namespaces for processes, mounts and networks: each broker has its own network, on a private bridge.

`reenter` restarts the program in new namespaces. The kernel removes them with their first process, so no
process, mount or interface is left, however the program ends. Root may create namespaces; on most systems
every user may (in a user namespace).

    bridge 10.77.0.1     the program, its clients and ZooKeeper
    b1     10.77.0.11    broker 1, and so on

A cut silently drops packets on arrival, as a broken network does. A port that rejects answers with a reset,
as a firewall may, or as the kernel does for a dead process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSIDE = "MILLSTREAM_FAULTS_INSIDE"
HERE = "10.77.0.1"
# unshare itself ignores every signal but SIGKILL, which it gets when we are gone.
_WITH_US = ["setpriv", "--pdeathsig", "KILL", "unshare"]
_REFUSING = ["-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"]
_NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def inside() -> bool:
    """Whether `reenter` started this process."""
    return INSIDE in os.environ


def unshare() -> list[str] | None:
    """The command that runs another one in new namespaces; None if the system forbids it."""
    for more in ([], ["--user", "--map-root-user"]):
        command = [*_WITH_US, *more, *_NAMESPACES]
        try:
            subprocess.run([*command, "ip", "link", "show"], check=True, capture_output=True)
            subprocess.run([*command, "iptables", "-w", "-L"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return None


def reenter(command: Sequence[str], arguments: Sequence[str]) -> int:
    """Run this program's module again in new namespaces; return its exit status."""
    started = subprocess.Popen(
        [*command, sys.executable, "-P", "-m", "millstream_faults", *arguments],
        env={**os.environ, INSIDE: "1"},
    )
    while True:
        try:
            return started.wait()
        except KeyboardInterrupt:  # it got the same signal, and reports what it has seen so far
            continue


class Network:
    """The bridge and the brokers' namespaces. Create it inside, once."""

    def __init__(self, brokers: Sequence[int]) -> None:
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        Path("/run/netns").mkdir()
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", f"{HERE}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        for number in brokers:
            run("ip", "netns", "add", f"b{number}")
            run(
                "ip",
                "link",
                "add",
                f"v{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                f"b{number}",
            )
            run("ip", "link", "set", f"v{number}", "master", "br0", "up")
            run("ip", "-n", f"b{number}", "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", f"b{number}", "link", "set", device, "up")

    @staticmethod
    def address(broker: int) -> str:
        return f"10.77.0.{10 + broker}"

    @staticmethod
    def entering(broker: int) -> list[str]:
        """The command prefix that enters a broker's network."""
        return ["nsenter", f"--net=/run/netns/b{broker}"]

    def cut(self, sender: int, receiver: int) -> None:
        """Drop everything that one broker sends to another."""
        self._rule("-A", receiver, "-s", self.address(sender))

    def mend(self, sender: int, receiver: int) -> None:
        self._rule("-D", receiver, "-s", self.address(sender))

    def cut_from(self, ports: Sequence[int], broker: int) -> None:
        """Drop everything that these local ports send to a broker."""
        for port in ports:
            self._rule("-A", broker, "-s", HERE, "-p", "tcp", "--sport", str(port))

    def mend_from(self, ports: Sequence[int], broker: int) -> None:
        for port in ports:
            self._rule("-D", broker, "-s", HERE, "-p", "tcp", "--sport", str(port))

    def cut_to(self, broker: int, ports: Sequence[int]) -> None:
        """Drop everything that a broker sends to these local ports."""
        for port in ports:
            run("iptables", "-w", "-A", "INPUT", *self._to(broker, port))

    def mend_to(self, broker: int, ports: Sequence[int]) -> None:
        for port in ports:
            run("iptables", "-w", "-D", "INPUT", *self._to(broker, port))

    def reject(self, broker: int, port: int) -> None:
        """Refuse new connections to this port of a broker and reset existing ones."""
        run(*self.entering(broker), "iptables", "-w", "-A", "INPUT", *_REFUSING, "--dport", str(port))
        run(*self.entering(broker), "ss", "--kill", "--tcp", "sport", "=", f":{port}")

    def accept(self, broker: int, port: int) -> None:
        run(*self.entering(broker), "iptables", "-w", "-D", "INPUT", *_REFUSING, "--dport", str(port))

    def _to(self, broker: int, port: int) -> list[str]:
        return ["-s", self.address(broker), "-p", "tcp", "--dport", str(port), "-j", "DROP"]

    def _rule(self, change: str, receiver: int, *match: str) -> None:
        run(*self.entering(receiver), "iptables", "-w", change, "INPUT", *match, "-j", "DROP")


def run(*command: str) -> None:
    """Run a command. Raises RuntimeError with its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
