"""A Prometheus as a real process, which scrapes the test's targets and evaluates the chart's rules."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from .daemon import Daemon
from .tools import require

INTERVAL = "2s"


@dataclass(frozen=True, slots=True)
class Target:
    """HOST:PORT of a process, with the labels that the chart's monitors add."""

    job: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    honor_labels: bool = False


class PrometheusProcess(Daemon):
    """Scrapes each target every INTERVAL; ``rules`` are files of rules."""

    name = "Prometheus"

    def __init__(self, folder: Path, targets: Sequence[Target], rules: Sequence[Path] = ()) -> None:
        super().__init__(folder, "prometheus.log")
        self.targets = targets
        self.rules = rules
        self.url = ""

    def start(self) -> Self:
        binary = require("prometheus")
        self.folder.mkdir(parents=True, exist_ok=True)
        config = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [str(path) for path in self.rules],
            "scrape_configs": [
                {
                    "job_name": target.job,
                    "honor_labels": target.honor_labels,
                    "static_configs": [{"targets": [target.address], "labels": dict(target.labels)}],
                }
                for target in self.targets
            ],
        }
        path = self.folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        arguments = [f"--config.file={path}", f"--storage.tsdb.path={self.folder / 'data'}"]
        self.launch([binary, *arguments, f"--web.listen-address={address}"])
        self.await_ready(lambda _: self._answers())
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **query: str) -> Any:
        """The data of a response of the HTTP API; AssertionError with Prometheus' error."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {query}: {error.read().decode()}") from None
        assert found["status"] == "success", found
        assert not found.get("warnings"), found["warnings"]
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The current series of an expression."""
        series: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return series
