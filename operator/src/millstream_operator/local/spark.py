"""A local run of a BatchLoad: spark-submit with a local master, in the foreground.

    DATA/loads/NAME/RUN/run.json      the input of `millstream-load`
    DATA/loads/NAME/RUN/result.json   its report at the end
    DATA/loads/NAME/RUN/spark.log     Spark's output

The job is that of `spark-operator-jobs`, installed beside this Python. An output folder on a volume claim is a folder
of that name in `DATA/volumes`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..models import BatchLoad
from ..models.conditions import Reason
from ..models.load_run import ObservedRun, RunState
from ..reconcile.load.runner import TIMED_OUT, Report, explained, reason_of, succeeded
from ..resources.load import AVRO_LIMITS, SPARK_VERSION
from ..resources.load_run_file import run_file, run_id, run_name
from ..resources.pod_access import PodAccess
from .clusters import command, folder_name
from .java import NotInstalled, find_java, pyspark_folder
from .processes import MARK

JARS_VARIABLE = "MILLSTREAM_SPARK_JARS"
PACKAGES = ",".join(
    f"org.apache.spark:spark-{name}_2.13:{SPARK_VERSION}" for name in ("sql-kafka-0-10", "avro")
)
KAFKA_JAR = ("spark-sql-kafka-*.jar", "Spark's Kafka source")
OTHER_JARS = {
    "Delta": ("delta-spark_*.jar", "Delta"),
    "Iceberg": ("iceberg-spark-runtime-*.jar", "Iceberg"),
}
S3_JAR = ("hadoop-aws-*.jar", "S3A")
UNRESOLVED = "unresolved dependency: "
STOP_S = 10.0
SPARSE_S = 15.0
LOG = "spark.log"
LOG_LINES = 20
UNRESOLVED_LINES = 200  # Spark prints every address that it tried, and a stack trace
MAX_LINE = 400
_PROGRESS = re.compile(r"load: (\w+): ([\d,]+) of ([\d,]+) records(?:, (stage .*))?")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; ``step`` is "" at its end. Spark's ``stage`` is known while one runs."""

    run: str
    total: int
    step: str = ""
    records: int = 0
    stage: str = ""

    def __str__(self) -> str:
        if not self.records and not self.stage:
            return self.step
        stage = self.stage and f", {self.stage}"
        return f"{self.step}: {self.records:,} of {self.total:,} records{stage}"


def progress_in(line: str, run: str) -> Progress | None:
    """The progress that a line of the job's output reports."""
    if (found := _PROGRESS.match(line)) is None:
        return None
    records, total = (int(number.replace(",", "")) for number in found.group(2, 3))
    return Progress(run, total, found[1], records, found[4] or "")


class Sparse:
    """Writes the progress of a run, as a line at most every ``SPARSE_S`` seconds: a short run writes none."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._last: dict[str, float] = {}

    def __call__(self, at: Progress) -> None:
        now = self._clock()
        if not at.step:
            self._last.pop(at.run, None)
        elif now - self._last.setdefault(at.run, now) >= SPARSE_S:
            self._last[at.run] = now
            self._say(f"{at.run}: {at}")


def job_file(load: BatchLoad) -> Path:
    """The job's program; raises NotInstalled if it cannot run here."""
    find_java()
    pyspark_folder()
    check_jars(load)
    jobs = importlib.util.find_spec("millstream_jobs")
    if jobs is None or not jobs.submodule_search_locations:
        raise NotInstalled("no millstream_jobs: install the Python package millstream-jobs[spark]")
    return Path(jobs.submodule_search_locations[0]) / "load.py"


def _jars() -> Path:
    return Path(os.environ.get(JARS_VARIABLE, ".jars/spark")).resolve()


def check_jars(load: BatchLoad) -> None:
    """Raises NotInstalled if a jar is missing that Spark does not download itself (PACKAGES)."""
    folder = _jars()
    needed = [KAFKA_JAR] if JARS_VARIABLE in os.environ or any(folder.glob("*.jar")) else []
    needed += [jar for wanted, jar in OTHER_JARS.items() if load.spec.output.format == wanted]
    if load.spec.output.path.startswith("s3a:"):
        needed.append(S3_JAR)
    if missing := [what for name, what in needed if not any(folder.glob(name))]:
        raise NotInstalled(
            f"no jar of {' and '.join(missing)} in {folder}: run `make jars` in Millstream's repository, or name the"
            f" folder with the jars in {JARS_VARIABLE}"
        )


def output_path(load: BatchLoad, data: Path) -> str:
    """The output path on this machine."""
    output = load.spec.output
    if output.volume_claim_name is None:
        return output.path
    inside = output.path.strip("/").split("/")[1:]
    volume = data / "volumes" / folder_name(load.namespace, output.volume_claim_name)
    return str(volume.joinpath(*inside))


def run_folder(load: BatchLoad, data: Path) -> Path:
    return data / "loads" / folder_name(load.namespace, load.name) / run_name(load)


def log_of(load: BatchLoad, data: Path) -> tuple[str, ...]:
    """The end of the log of the load's last run; empty if there is none."""
    return _tail(run_folder(load, data) / LOG)


def run(
    load: BatchLoad,
    access: PodAccess,
    data: Path,
    program: Path,
    progress: Callable[[Progress], None],
    timeout: float,
) -> ObservedRun:
    """Run the load's last run to its end, or for ``timeout`` seconds. Blocking, for minutes."""
    folder = run_folder(load, data)
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "result.json", folder / LOG
    result.unlink(missing_ok=True)
    path = output_path(load, data)
    if path.startswith("/"):
        with contextlib.suppress(OSError):  # the job reports the problem with it
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    content = run_file(load, access, result=str(result), output_path=path)
    (folder / "run.json").write_text(json.dumps(content, indent=1))
    arguments = [*submit_command(load), str(program), str(folder / "run.json")]
    environment = {
        **os.environ,
        MARK: "",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    late = threading.Event()
    name = run_name(load)
    records = (load.status.last_run.records if load.status.last_run else None) or 0
    progress(Progress(name, records, "starting Spark"))

    def stop_late() -> None:
        late.set()
        _stop(process)

    timer = threading.Timer(timeout, stop_late)
    timer.daemon = True
    timer.start()
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if (at := progress_in(line, name)) is not None:
                    progress(at)
            status = process.wait()
        except BaseException:  # an interrupt: the next `up` continues with the same offsets
            _stop(process)
            raise
        finally:
            timer.cancel()
            progress(Progress(name, records))
    if late.is_set():
        return ObservedRun(RunState.FAILED, error=TIMED_OUT, reason=Reason.DEADLINE_EXCEEDED)
    return _seen(result, status, log, run_id(load))


def submit_command(load: BatchLoad) -> list[str]:
    """spark-submit with all its options, up to the program."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Loads here are short: full compilation takes a third of their processor time and gains nothing.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {AVRO_LIMITS}",
        **{
            key: value
            for key, value in load.spec.spark.conf.items()
            if not key.startswith("spark.kubernetes.")
        },
    }
    jars = _jars()
    if any(jars.glob("*.jar")):
        conf["spark.driver.extraClassPath"] = f"{jars}/*"  # spark.jars would copy them for each run
    else:
        conf["spark.jars.packages"] = PACKAGES
    arguments = [command("spark-submit"), "--master", "local[*]", "--name", run_name(load)]
    arguments += ["--driver-memory", load.spec.spark.driver.memory]
    for key, value in sorted(conf.items()):
        arguments += ["--conf", f"{key}={value}"]
    return arguments


def _stop(process: subprocess.Popen[str]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            return


def _seen(result: Path, status: int, log: Path, run: str) -> ObservedRun:
    try:
        report = msgspec.json.decode(result.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError):
        report = Report()
    if report.run != run:  # of another run, or none
        report = Report()
    if status == 0 and report.state == RunState.SUCCEEDED:
        return succeeded(report)
    reason, error = explained(reason_of(report), report.error or unreported(status, log))
    return ObservedRun(RunState.FAILED, error=error, reason=reason)


def unreported(status: int, log: Path) -> str:
    """Why a job failed that wrote no report."""
    if any(UNRESOLVED in line for line in _tail(log, UNRESOLVED_LINES)):
        return (
            "Spark could not download its Kafka source: run `make jars` in Millstream's repository, or name a folder"
            f" with the jars in {JARS_VARIABLE}; the log is {log}"
        )
    return f"Spark ended with status {status}; its log is {log}"


def _tail(log: Path, count: int = LOG_LINES) -> tuple[str, ...]:
    """The last lines of a log."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - count * MAX_LINE))
        lines = file.read().decode(errors="replace").splitlines()
        return tuple(line[:MAX_LINE] for line in lines[-count:])
    return ()
