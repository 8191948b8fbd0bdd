"""Java on this machine, for loads (Spark) and ZooKeeper, and the jars in pyspark."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from ..resources.load import SPARK_VERSION

JAVA = 17


class NotInstalled(Exception):
    """A required program is not installed; the message is one line that names what to install."""


def find_java() -> str:
    """The `java` of JAVA_HOME, else of the PATH; raises NotInstalled unless one is of version 17 or newer."""
    java = shutil.which("java", path=_java_path())
    version = _java_version(java) if java else None
    if java is None or version is None:
        raise NotInstalled(f"no Java {JAVA}: install a JDK {JAVA} (or name one in JAVA_HOME)")
    if version < JAVA:
        raise NotInstalled(
            f"no Java {JAVA} ({java} is Java {version}): install a JDK {JAVA} (or name one in JAVA_HOME)"
        )
    return java


def pyspark_folder() -> Path:
    """The folder of pyspark; raises NotInstalled if it is not installed."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise NotInstalled(f"no pyspark: install the Python package pyspark=={SPARK_VERSION}")
    return Path(found.origin).parent


def _java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else os.environ.get("PATH", "")


def _java_version(java: str) -> int | None:
    """The major version in the output of `java -version` ("17.0.15", "1.8.0_292"); None if there is none."""
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=30
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
