"""The benchmarks' own arithmetic, documents and bytes; benchmarks themselves never run as tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream_bench import clusters, document, operator_document, perf, plots, process, run, steady, wire
from millstream_bench.figures import Figure, cpu, median, number, rate, scatter
from millstream_bench.peers import Peer
from millstream_bench.results import Results, load, save
from millstream_bench.workload import Workload
from millstream_bench.workloads import WORKLOADS, cluster, floor, importing, latency, produce, single
from millstream_harness.operator_scale_figures import Found, Size
from millstream_kafka.appendable import validate
from millstream_kafka.batch import iter_batches, read_records
from millstream_kafka.protocol import metadata

pytestmark = pytest.mark.process


def results() -> Results:
    made = Results(machine={"processor": "2 × Some CPU", "memory": "24 GiB"}, rounds=3)
    for ours, theirs in ((500_000, 250_000), (600_000, 300_000), (100_000, 200_000)):
        made.add("producer-200b", "millstream", {"rate": ours, "broker CPU": 2.0})
        made.add("producer-200b", "kafka", {"rate": theirs, "broker CPU": 3.0})
    made.add("memory-after-all", "millstream", {"memory": 40.5})
    made.add("memory-after-all", "kafka", {"memory": 950.0})
    made.add("floor-produce", "millstream", {"CPU a GB": 1.0})
    made.add("floor-produce", "floor", {"CPU a GB": 0.8})
    made.add("cluster-shutdown", "millstream", {"time": 0.2})
    made.add("cluster-shutdown", "kafka", {"time": 0.3})
    made.add("cluster-failover", "millstream", {"time": 0.4})
    made.add("cluster-failover", "kafka", {"time": 8.0})
    made.add("mirror", "millstream", {"rate": 400_000, "memory": 40.0})
    made.add("mirror", "mirrormaker2", {"rate": 50_000, "memory": 1000.0})
    made.add("mirror-credentials", "millstream", {"rate": 200_000})
    made.add("mirror-credentials", "mirrormaker2", {"rate": 40_000})
    made.add("mirror-killed", "millstream", {"time": 1.5})
    for peer, factor in (("millstream", 1), ("kafka", 2)):
        made.add("latency-1000", peer, {"p50": 0.2 * factor, "p99": 2.0 * factor, "p99.9": 9.0 * factor})
    return made


def test_workloads_have_names_of_their_own() -> None:
    names = [workload.name for workload in WORKLOADS]
    assert len(set(names)) == len(names)


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (507_614.2, 96.84, 0.4123, 1.5, 0, 100)] == [
        "507,614",
        "96.8",
        "0.412",
        "1.5",
        "0",
        "100",
    ]


def test_goals() -> None:
    assert rate(1.2).goal == "≥ 1.2×"
    assert rate(1.2).met(120, 100) is True
    assert rate(1.2).met(119, 100) is False
    assert cpu(0.5).met(1.0, 2.0) is True
    assert rate().met(1, 100) is None
    start = Figure("time", "s", ratio=0.25, value=0.5)
    assert start.goal == "≤ 0.5 s, ≤ 0.25×"
    assert start.met(0.4, 2.0) is True
    assert start.met(0.4, 1.0) is False
    assert start.met(0.6, None) is False


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    save(results(), path)
    assert load(path) == results()
    assert median(load(path).values("producer-200b", "rate")["millstream"]) == 500_000


def test_the_document_is_written_between_its_markers() -> None:
    before = f"# Figures\n\n{document.BEGIN}\nold\n{document.END}\n\nWhat was found.\n"
    after = document.update(before, results())
    assert after.startswith("# Figures\n\n")
    assert after.endswith(f"{document.END}\n\nWhat was found.\n")
    assert "old" not in after
    assert "Medians of 3 rounds on 2 × Some CPU, 24 GiB" in after
    assert (
        "| 200 B records, 16 KB batches, acks=1 | rate, records/s | 500,000 | 250,000 | 2.00 | ≥ 1× | yes |"
        in after
    )
    assert "|  | broker CPU, s | 2 | 3 | 0.67 | ≤ 0.45× | no |" in after
    assert "| CPU a GB, s | 1 | floor: 0.8 | 1.25 | ≤ 1.25× | yes |" in after
    assert "until all have a living leader | time, s | 0.4 | 8 | 0.05 | ≤ 2 s | yes |" in after
    assert "| rate, records/s | 400,000 | MirrorMaker 2: 50,000 | 8.00 |  |  |" in after
    assert "|  | memory, MB | 40 | MirrorMaker 2: 1,000 | 0.04 | ≤ 0.05× | yes |" in after
    assert (
        "until others continue with its partitions, mode Aggregate | time, s | 1.5 |  |  | ≤ 2 s | yes |"
        in after
    )
    assert document.update(after, results()) == after
    assert "![performance/rates.png](performance/rates.png)" in document.update(
        before, results(), ["performance/rates.png"]
    )
    with pytest.raises(ValueError, match="bench:begin"):
        document.update("# nothing", results())


def test_rows_of_another_machine_are_marked() -> None:
    made, others = results(), Results(machine={"processor": "4 × Another"}, rounds=3)
    others.add("producer-200b", "millstream", {"rate": 1.0})
    made.replace(others)
    after = document.update(f"{document.BEGIN}{document.END}", made)
    assert "¹ Measured on 4 × Another" in after
    assert "| 200 B records, 16 KB batches, acks=1¹ | rate, records/s | 1 |" in after
    assert after.count("¹") == 2
    others.machine = made.machine
    made.replace(others)
    assert "¹" not in document.update(after, made)


def test_the_document_and_its_plots_are_written_together(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"{document.BEGIN}{document.END}")
    run.write_document(results(), page, tmp_path / "performance")
    assert page.read_text().count("](performance/") == 6


def test_plots_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    drawn = plots.draw(results(), tmp_path)
    assert [path.name for path in drawn] == [
        "rates.png",
        "cpu.png",
        "memory.png",
        "times.png",
        "latency.png",
        "mirror.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert plots.draw(Results(machine={}), tmp_path) == []


def test_mirrors_have_a_panel_for_each_route() -> None:
    assert plots.mirrors(results()) == {
        "mode Aggregate": [("rate, records/s", 400_000, 50_000), ("memory, MB", 40.0, 1000.0)],
        "mode Aggregate, SCRAM, Apache Kafka to Millstream": [("rate, records/s", 200_000, 40_000)],
    }


def test_the_order_changes_from_round_to_round() -> None:
    assert run.in_turn(("millstream", "kafka"), 0) == ["millstream", "kafka"]
    assert run.in_turn(("millstream", "kafka"), 1) == ["kafka", "millstream"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing"], "--only: no workload 'nothing'; there are start, "),
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--scale", "0"], "--scale: 0 is not above 0 and at most 10"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(arguments)
    assert said in capsys.readouterr().err


def test_the_minimal_client_writes_valid_batches() -> None:
    batch = memoryview(bytearray(wire.record_batch(b"value", 3)))
    validate(batch)
    (_,) = iter_batches(batch)
    assert [(record.key, record.value) for record in read_records(batch)] == [(None, b"value")] * 3


def test_the_minimal_client_reads_metadata() -> None:
    brokers = [
        metadata.MetadataResponseBroker(node_id=number, host="host", port=9092, rack=rack)
        for number, rack in ((1, None), (3, "a rack"))
    ]
    partitions = [
        metadata.MetadataResponsePartition(
            partition_index=index, leader_id=leader, replica_nodes=[1, 2, 3], isr_nodes=isr
        )
        for index, leader, isr in ((1, -1, []), (0, 3, [3, 1]))
    ]
    topic = metadata.MetadataResponseTopic(name="t", partitions=partitions)
    for topics, expected in (([], ()), ([topic], ((3, (3, 1)), (-1, ())))):
        said = metadata.MetadataResponse(brokers=brokers, cluster_id="id", controller_id=3, topics=topics)
        assert wire.parsed_metadata(metadata.API.encode_response(4, said)) == ({1, 3}, 3, expected)


def test_partitions_are_led_when_all_have_a_leader_that_is_alive() -> None:
    def led(*leaders: int, partitions: int = 2) -> bool:
        found = wire.Metadata(frozenset((1, 2)), 1, tuple(wire.Partition(one, ()) for one in leaders))
        return clusters.all_led(found, partitions, (1, 2))

    assert led(1, 2)
    assert not led(1, 3)
    assert not led(-1, 2)
    assert not led(1)


def test_the_leader_of_a_quorum_is_read() -> None:
    assert clusters.quorum_leader("ClusterId:              abc\nLeaderId:               2\n") == 2
    with pytest.raises(ValueError, match="names no leader"):
        clusters.quorum_leader("LeaderId:               -1\n")


@pytest.mark.parametrize(
    ("times", "longest"),
    [
        ([], 4.0),
        ([9.0, 17.0], 8.0),  # both ends reach beyond the period
        ([0.0, 9.5, 10.5, 12.0, 13.75, 14.5, 99.0], 1.75),  # times before and after do not count
        ([9.5, 11.0], 3.0),  # nothing arrived until the end
    ],
)
def test_the_longest_silence(times: list[float], longest: float) -> None:
    assert cluster.longest_silence(array("d", times), 10.0, 14.0) == longest


def test_percentiles_of_latencies() -> None:
    values = array("d", [number / 1000 for number in range(1, 1001)])
    assert latency.percentile(values, 0.5) == 0.5
    assert latency.percentile(values, 0.999) == 0.999
    assert latency.percentile(array("d", [7.0]), 0.999) == 7.0


def test_the_tools_output_is_read() -> None:
    said = "10 records sent, 5.0 records/sec (0.1 MB/sec)\n30 records sent, 271003.5 records/sec (51.69 MB/sec), 1 ms\n"
    assert perf.produced_rate(said, 30) == 271003.5
    with pytest.raises(ValueError, match="did not send 31 records"):
        perf.produced_rate(said, 31)
    row = "2026-11-21 04:00:00:000, 2026-11-21 04:00:01:000, 95.3, 95.3, 100000, 100000.0, 300, 700, 136.2, 142857.1\n"
    assert perf.consumed_rate(row, 100_000) == 142857.1
    with pytest.raises(ValueError, match="did not read 100001 records"):
        perf.consumed_rate(row, 100_001)


def test_cpu_and_memory_of_a_process_and_its_children() -> None:
    assert process.cpu_seconds(os.getpid()) > 0
    alone = process.resident_mb(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in process.family(os.getpid())
        assert alone > 1
        child.communicate(b"\n")


def test_the_bare_loop_takes_what_the_client_sends(tmp_path: Path) -> None:
    topic = "bench-12345678"
    command = [sys.executable, "-P", "-m", "millstream_bench.bare", str(tmp_path / "log"), topic]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as bare:
        try:
            assert bare.stdout is not None
            bootstrap = f"127.0.0.1:{int(bare.stdout.readline())}"
            single.pipelined(bootstrap, topic, 40, floor.BATCH, floor.WINDOW)
            assert (tmp_path / "log").stat().st_size == 41 * len(floor.BATCH)
            assert floor.fetch_all(bootstrap, topic, 5_000_000, 41) >= 5_000_000
        finally:
            bare.kill()


@pytest.mark.parametrize(
    ("costs", "runs"),
    [
        ([7.0, 4.0, 3.0, 2.8, 2.9, 1.0], 5),  # the last three agree
        ([3.0, 2.8, 2.6, 2.6, 1.0], 4),  # neighbours agree, but the first three do not
        ([1.0, 1.0, 1.0], 3),
        ([1.0, 2.0] * 20, steady.MOST_RUNS),
    ],
)
def test_a_broker_is_warm_when_the_same_work_costs_the_same(costs: list[float], runs: int) -> None:
    spent, left = 0.0, list(costs)

    def work() -> None:
        nonlocal spent
        spent += left.pop(0)

    assert steady.until_steady(work, lambda: spent) == pytest.approx(costs[:runs])


def test_a_warm_up_has_the_runs_it_needs_and_no_more_than_it_may() -> None:
    spent = 0.0

    def work() -> None:
        nonlocal spent
        spent += 1.0

    assert len(steady.until_steady(work, lambda: spent, least_runs=6)) == 6
    assert len(steady.until_steady(work, lambda: 2**spent, most_runs=5)) == 5
    assert produce.WARM_UPS * produce.WARM_UP_RECORDS >= 6_000_000


def test_the_scatter_of_rounds() -> None:
    assert scatter([1.0, 1.1, 0.9]) == pytest.approx(0.2)
    assert scatter([1.0]) is None
    assert document.scatters([1.0, 1.1, 0.9], [2.0, 2.0]) == "20%, 0%"
    assert document.scatters([1.0, 1.5], [2.0]) == "40%, –"
    assert document.scatters([1.0], []) == ""


def test_clients_of_tls_trust_the_authority() -> None:
    address = perf.TlsAddress("127.0.0.1:9", Path("/ca.crt"))
    given = perf.consumer_command(address, "t", 5)
    assert given[given.index("--bootstrap-server") + 1] == "127.0.0.1:9"
    assert "ssl.truststore.location=/ca.crt" in given
    assert "security.protocol=SSL" in perf.producer_command(address, "t", 5, 5, {})
    assert not any("security" in part for part in perf.consumer_command("127.0.0.1:9", "t", 5))


def test_some_workloads_are_measured_in_more_rounds_than_the_run_has(tmp_path: Path) -> None:
    measured: list[tuple[str, str]] = []

    def workload(name: str, **more: Any) -> Workload:
        def run_it(peer: Peer, scale: float) -> dict[str, float]:
            measured.append((name, peer.name))
            return {"rate": 1.0}

        contenders = ("millstream", "other")
        return Workload(
            name, name, (rate(),), run_it, own=True, where=tmp_path, contenders=contenders, **more
        )

    chosen = [workload("short", least_rounds=3, rounds={"other": 2}), workload("long")]
    found = run.measure(chosen, 1, 1.0, tmp_path)
    assert [peer for name, peer in measured if name == "short"] == [
        *("millstream", "other"),
        *("other", "millstream"),
        "millstream",
    ]
    assert [peer for name, peer in measured if name == "long"] == ["millstream", "other"]
    assert found.rounds == 1
    assert sum(one.measurements(1) for one in chosen) == len(measured)


def test_the_page_has_the_committed_results() -> None:
    page = run.DOCUMENT.read_text()
    plots_there = [f"performance/{name}" for name in re.findall(r"^!\[performance/(\S+)\]", page, re.M)]
    assert document.update(page, load(run.COMMITTED), plots_there) == page, "make bench BENCH=--document"
    if run.OPERATOR.exists():
        measured = operator_document.load(run.OPERATOR)
        assert operator_document.update(page, measured) == page, "make bench BENCH=--document"
    assert all((run.DOCUMENT.parent / plot).exists() for plot in plots_there)


def test_a_statement_in_a_new_interpreter_takes_time_and_must_not_fail() -> None:
    seconds, cpu_seconds = importing.interpreter("sum(range(3_000_000))")
    _, idle = importing.interpreter("import time; time.sleep(0.3)")
    assert seconds > 0
    assert cpu_seconds > idle
    with pytest.raises(RuntimeError, match="'import nothing_of_this_name' ended with status 1"):
        importing.interpreter("import nothing_of_this_name")


def test_the_table_about_the_operator_is_written_from_its_file(tmp_path: Path) -> None:
    size = Size(1, 500, 500, 1, partitions=10, replicas=3)
    found = Found(
        steady_cpu=0.042,
        lag_age_s=7.25,
        peak_bytes=98_000_000,
        broker_requests={"DescribeGroups": 0.5, "OffsetFetch": 0.5, "Metadata": 2.0},
    )
    measured, page = tmp_path / "operator.json", tmp_path / "page.md"
    page.write_text(f"before {operator_document.BEGIN}old{operator_document.END} after")
    run.write_operator(page, measured)
    assert "old" in page.read_text()  # nothing is measured yet
    measured.write_bytes(msgspec.json.encode({"machine": {"memory": "24 GiB"}, "size": size, "found": found}))
    run.write_operator(page, measured)
    written = page.read_text()
    assert "old" not in written
    assert "500 ConsumerGroups over 5,000 partitions of 500 Topics, 3 brokers, 3 replicas" in written
    assert "| CPU of the operator in steady state |  | 4.2 % of a core |" in written
    assert "| requests to brokers in steady state |  | 3 a second |" in written
    assert "| … of them for groups |  | 1 a second |" in written
    assert "| age of a group's lag in the metrics, at most | ≤ 10 s | 7.25 s |" in written
    assert "One run of 180 s on ?, 24 GiB" in written
