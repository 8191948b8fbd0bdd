"""A network link that can be slow, lose packets, or be cut: like netem, but also on kernels without it.

    this network 10.78.0.1  -- near --  Link  -- far --  10.78.0.2 another network namespace

``near`` and ``far`` are TUN devices. A thread carries IP packets from one to the other, late or not at all; the kernel
does everything else, such as TCP's retransmission. Packets to and from a port may have their own condition.

It needs the right to create network namespaces and devices. The namespace and both devices end with this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

HERE, THERE = "10.78.0.1", "10.78.0.2"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES = 65536
TCP = 6
OTHERS = ""
"""The name of all packets of other ports."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``delay_s`` applies in each direction; ``loss`` is the share of packets that never arrive, 1 cuts the link.

    ``rate`` is in bytes a second in each direction, 0 for no limit.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    rate: int = 0


FINE, CUT = Condition(), Condition(loss=1.0)
SLOW = Condition(delay_s=0.2, loss=0.05)


def has_tun() -> bool:
    """Whether this process may create TUN devices."""
    return os.access("/dev/net/tun", os.R_OK | os.W_OK)


class Link:
    def __init__(self, ports: Mapping[str, int], seed: int = 1) -> None:
        """``ports`` are TCP ports of servers here, by their names in `set`."""
        self._names = {port: name for name, port in ports.items()}
        self._conditions = dict.fromkeys((*ports, OTHERS), FINE)
        self._busy_until: dict[tuple[str, int], float] = {}
        """With a rate: when the packets sent so far will have left, by name and receiving device."""
        self._chance = random.Random(seed)
        self._stopping, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="link", daemon=True)

    def __enter__(self) -> Self:
        self._there = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        namespace = Path(f"/proc/{self._there.pid}/ns/net")
        while namespace.readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.01)
        self.entering = ["nsenter", f"--net={namespace}"]
        """Prefix of a command that runs at the other end."""
        self._near, self._far = _tun("near"), _tun("far")
        _run("ip", "addr", "add", HERE, "peer", THERE, "dev", "near")
        _run("ip", "link", "set", "near", "up")
        _run("ip", "link", "set", "far", "netns", str(self._there.pid))
        _run(*self.entering, "ip", "addr", "add", THERE, "peer", HERE, "dev", "far")
        for device in ("far", "lo"):
            _run(*self.entering, "ip", "link", "set", device, "up")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._stop, b"x")
        self._thread.join()
        for descriptor in (self._near, self._far, self._stopping, self._stop):
            os.close(descriptor)
        self._there.kill()
        self._there.wait()

    def set(self, condition: Condition, *names: str) -> None:
        """Set the condition from now on, for packets sent at either end; without names, for all ports."""
        for name in names or tuple(self._conditions):
            self._conditions[name] = condition

    def _carry(self) -> None:
        """Carry packets; the thread runs this."""
        due: list[tuple[float, int, int, bytes]] = []
        number = 0
        while True:
            wait = max(0.0, due[0][0] - time.monotonic()) if due else None
            readable, _, _ = select.select([self._near, self._far, self._stopping], [], [], wait)
            if self._stopping in readable:
                return
            now = time.monotonic()
            for descriptor in readable:
                packet = os.read(descriptor, PACKET_BYTES)
                name = self._name(packet)
                condition = self._conditions[name]
                if condition.loss and self._chance.random() < condition.loss:
                    continue
                other = self._far if descriptor == self._near else self._near
                at = now
                if condition.rate:
                    at = max(at, self._busy_until.get((name, other), 0.0)) + len(packet) / condition.rate
                    self._busy_until[name, other] = at
                number += 1
                heapq.heappush(due, (at + condition.delay_s, number, other, packet))
            while due and due[0][0] <= now:
                *_, descriptor, packet = heapq.heappop(due)
                with contextlib.suppress(OSError):  # the other end is down
                    os.write(descriptor, packet)

    def _name(self, packet: bytes) -> str:
        if packet[0] >> 4 != 4 or packet[9] != TCP:
            return OTHERS
        at = (packet[0] & 15) * 4
        source, destination = struct.unpack_from(">HH", packet, at)
        return self._names.get(destination) or self._names.get(source, OTHERS)


def _tun(name: str) -> int:
    """Create a TUN device; returns its file descriptor, which keeps it alive."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def _run(*command: str) -> None:
    """Raises RuntimeError with the command's output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
