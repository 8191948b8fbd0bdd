"""kubectl and helm as users call them, with polling that names its condition.

Everything goes through the two commands on PATH and the kubeconfig in KUBECONFIG, so a test reads like the
tutorial and works on any cluster that kubectl reaches.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
CLIENT_POD = "client"
OF_TESTS = "millstream.dev/test"
"""The label of the namespaces that tests make."""


class CommandFailed(Exception):
    """A command failed; the text is its output."""


def run(*command: str, stdin: bytes | None = None, timeout: float = 120.0) -> str:
    """Run a command and return its standard output; CommandFailed with both outputs if it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise CommandFailed(f"{' '.join(command)} ended with status {done.returncode}:\n{said}")
    return done.stdout.decode(errors="replace")


def kubeconfig(file: Path, **contexts: str) -> None:
    """Write a kubeconfig for the present cluster with these contexts, by name and namespace; the first is current."""
    config: Json = json.loads(run("kubectl", "config", "view", "--minify", "--flatten", "-o", "json"))
    (now,) = config["contexts"]
    config["contexts"] = [
        {"name": name, "context": {**now["context"], "namespace": namespace}}
        for name, namespace in contexts.items()
    ]
    config["current-context"] = next(iter(contexts))
    file.write_text(json.dumps(config))


def until(
    what: str,
    check: Callable[[], T | None],
    timeout: float = 120.0,
    every: float = 0.5,
    passing: tuple[type[Exception], ...] = (CommandFailed,),
) -> T:
    """Poll ``check`` until it returns a true value; at the deadline, fail with the last error.

    ``passing``: exceptions that may pass; others end the test at once."""
    deadline = time.monotonic() + timeout
    last: object = None
    while time.monotonic() < deadline:
        try:
            if found := check():
                return found
            last = found
        except passing as error:
            last = error
        time.sleep(every)
    raise AssertionError(f"{what} did not come true in {timeout:.0f} s; last seen: {last}")


@dataclass(frozen=True, slots=True)
class Namespace:
    """kubectl in one namespace."""

    name: str

    def kubectl(self, *args: str, stdin: bytes | None = None, timeout: float = 120.0) -> str:
        return run("kubectl", "--namespace", self.name, *args, stdin=stdin, timeout=timeout)

    def apply(self, source: Path | Json) -> None:
        if isinstance(source, Path):
            self.kubectl("apply", "-f", str(source))
        else:
            self.kubectl("apply", "-f", "-", stdin=json.dumps(source).encode())

    def get(self, kind: str, name: str) -> Json:
        found: Json = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def list(self, kind: str, *args: str) -> list[Json]:
        items: list[Json] = json.loads(self.kubectl("get", kind, *args, "-o", "json"))["items"]
        return items

    def patch(self, kind: str, name: str, change: Json) -> None:
        self.kubectl("patch", kind, name, "--type=merge", "--patch", json.dumps(change))

    def condition(self, kind: str, name: str, type_: str = "Ready") -> Json:
        """The condition of that type, or an empty one."""
        conditions = self.get(kind, name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {})

    def lag(self, kind: str, name: str) -> int | None:
        """The lag in the resource's status, in records; None while the status shows none, because nobody knows it."""
        records: int | None = self.get(kind, name).get("status", {}).get("lag", {}).get("records")
        return records

    def wait_condition(
        self,
        kind: str,
        name: str,
        type_: str = "Ready",
        *,
        status: str = "True",
        reason: str | None = None,
        timeout: float = 180.0,
    ) -> Json:
        """Wait for a condition of the resource's present generation; returns the whole resource."""

        last: Json = {}

        def check() -> Json | None:
            nonlocal last
            found = self.get(kind, name)
            conditions = found.get("status", {}).get("conditions", [])
            seen: Json = next((c for c in conditions if c["type"] == type_), {})
            last = seen
            current = seen.get("observedGeneration") == found["metadata"]["generation"]
            right = seen.get("status") == status and (reason is None or seen.get("reason") == reason)
            if current and right:
                return found
            return None

        try:
            return until(f"{type_}={status} {reason or ''} of {kind}/{name}", check, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; condition: {last}") from None

    def client(self, *command: str, image: str, stdin: bytes = b"", timeout: float = 300.0) -> str:
        """Run the ``millstream`` command in the namespace's client pod, which is created on first use."""
        sleeper = "import signal; signal.signal(15, lambda *_: exit()); signal.pause()"
        if not self.kubectl("get", "pod", CLIENT_POD, "--ignore-not-found"):
            self.kubectl(
                "run", CLIENT_POD, f"--image={image}", "--image-pull-policy=IfNotPresent", "--restart=Never",
                "--command", "--", "python3", "-c", sleeper,
            )  # fmt: skip
        self.kubectl("wait", "--for=condition=Ready", f"pod/{CLIENT_POD}", "--timeout=60s")
        return self.kubectl("exec", "--stdin", CLIENT_POD, "--", *command, stdin=stdin, timeout=timeout)
