"""Java programs beside the tests: Kafka's own jars, its command-line tools, and single-file clients.

The jars are those of `bench/kafka/pom.xml`, fetched once by Maven. The environment variable `KAFKA_VERSION` chooses
another release of Apache Kafka, as `make compat-matrix` does.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from millstream_harness.tools import require

ROOT = Path(__file__).resolve().parents[3]
_POM = (ROOT / "bench" / "kafka" / "pom.xml").read_text()
PEER_VERSION = _POM.partition("<kafka.version>")[2].partition("<")[0]
"""The release that Millstream is compared with, response by response."""
KAFKA_VERSION = os.environ.get("KAFKA_VERSION") or PEER_VERSION
KAFKA_JARS = ROOT / ".jars" / f"kafka-{KAFKA_VERSION}"
SPARK_JARS = ROOT / ".jars" / "spark"
LOG4J = ROOT / "bench" / "kafka"
# A tool lives for a second: a compiler and a collector with a long start-up do not pay off.
SHORT_LIVED = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# A server that tests start lives for a minute: the second compiler would take more time than it saves.
OF_A_TEST = ("-Xmx1G", *SHORT_LIVED[1:], "-Djava.awt.headless=true")
TOOL_TIMEOUT_S = 180.0

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "org.apache.kafka.tools.ConfigCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "storage": "kafka.tools.StorageTool",
}
BEFORE_THEY_MOVED = {
    "acls": "kafka.admin.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
    "dump-log": "kafka.tools.DumpLogSegments",
    "console-producer": "kafka.tools.ConsoleProducer",
    "broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
}
"""Classes of tools in older releases, the first of them until 4.3."""
BEFORE_THEY_WERE_RENAMED = {
    "console-producer": {"--command-config": "--producer.config"},
    "console-consumer": {"--command-config": "--consumer.config"},
    "producer-perf-test": {"--command-property": "--producer-props"},
}
"""Options of tools until 4.1."""


def java() -> str:
    return require("java")


def kafka_jars() -> Path:
    """The folder of Apache Kafka's jars, fetched by Maven the first time."""
    return fetched(KAFKA_JARS)


def fetched(folder: Path) -> Path:
    """A folder of jars that a Makefile target fetches by Maven."""
    done = folder / ".complete"
    if not done.exists():
        require("mvn")
        folder.parent.mkdir(exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need them, too
            make = ["make", "--no-print-directory", str(done.relative_to(ROOT))]
            subprocess.run(make, cwd=ROOT, check=True)
    return folder


def client_classpath(version: str) -> str:
    """The Java client alone, of Kafka's version or of the one that Spark brings, with what it needs."""
    jars = {path.name: path for folder in (KAFKA_JARS, SPARK_JARS) for path in fetched(folder).glob("*.jar")}
    needed = [jars[f"kafka-clients-{version}.jar"]]
    needed += [
        path
        for name, path in sorted(jars.items())
        if name.startswith(("slf4j-", "log4j-", "lz4-", "snappy-", "zstd-"))
    ]
    return os.pathsep.join(map(str, needed))


def java_command(
    main: str, *args: str, options: Sequence[str] = SHORT_LIVED, log: str = "tools", classpath: str = ""
) -> list[str]:
    """The command that runs ``main`` (a class, or a .java source file) with Kafka's jars, or those named."""
    return [
        java(),
        *options,
        f"-Dlog4j2.configurationFile={LOG4J / f'log4j2-{log}.properties'}",
        "-cp",
        classpath or f"{kafka_jars()}/*",
        main,
        *args,
    ]


def kafka_tool_command(tool: str, *args: str) -> list[str]:
    """The command for one of Kafka's tools, by its script's name without ``kafka-`` and ``.sh``."""
    return java_command(_tool_class(tool), *_options_of_release(tool, args))


def is_before(*release: int) -> bool:
    """Whether the Kafka beside the tests is older than this release, such as ``4, 2``."""
    return tuple(map(int, KAFKA_VERSION.split(".")[: len(release)])) < release


def reader(*properties: str) -> tuple[str, ...]:
    """Options of the console producer that set these."""
    return _options("--reader-property", properties)


def formatter(*properties: str) -> tuple[str, ...]:
    """Options of the console consumer that set these."""
    return _options("--formatter-property", properties)


def _options(name: str, properties: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for one in properties for part in ("--property" if is_before(4, 2) else name, one))


def _options_of_release(tool: str, args: Sequence[str]) -> list[str]:
    """Options named as in today's release, as the Kafka beside the tests names them."""
    if not is_before(4, 2):
        return list(args)
    named = [BEFORE_THEY_WERE_RENAMED.get(tool, {}).get(each, each) for each in args]
    if tool == "producer-perf-test" and "--bootstrap-server" in named:
        # A property like others, all of which follow one option.
        at = named.index("--bootstrap-server")
        server = named.pop(at + 1)
        named.pop(at)
        properties = named.index("--producer-props")
        named.insert(properties + 1, f"bootstrap.servers={server}")
    return named


@cache
def _tool_class(tool: str) -> str:
    main = TOOLS[tool]
    if tool in BEFORE_THEY_MOVED:
        (jar,) = kafka_jars().glob("kafka-tools-[0-9]*.jar")
        if f"{main.replace('.', '/')}.class" not in ZipFile(jar).namelist():
            return BEFORE_THEY_MOVED[tool]
    return main


def run_kafka_tool(
    tool: str, *args: str, stdin: str | None = None, check: bool = True, timeout: float = TOOL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools to its end; with ``check``, AssertionError with its output if it fails."""
    return run(kafka_tool_command(tool, *args), stdin=stdin, check=check, timeout=timeout)


def run(
    command: Sequence[str],
    *,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = TOOL_TIMEOUT_S,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a client's command to its end, output as text; AssertionError with its output if it fails."""
    try:
        done = subprocess.run(
            command,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = "\n".join(part.decode(errors="replace") for part in (late.stdout, late.stderr) if part)
        raise AssertionError(f"not done in {timeout} s: {' '.join(command)}\n{said}") from None
    if check and done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}"
        raise AssertionError(f"status {done.returncode} of {' '.join(command)}\n{said}")
    return done


@contextmanager
def running(command: Sequence[str], output: Path) -> Iterator[None]:
    """Run it until the end of the block, which kills it; a failed assertion shows the end of its output."""
    with output.open("ab") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{output.read_text()[-5000:]}") from None
        finally:
            process.kill()
