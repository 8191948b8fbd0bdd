"""The broker's metrics for Prometheus; `metric_table` lists them all.

The hot path only adds to plain attributes. At a scrape, the loop collects the values in slices, and a thread formats
them. A scrape looks at each partition once; partitions that come or go meanwhile appear in the next one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from millstream_process import supervision
from millstream_process.loop import Stalls
from millstream_process.metrics import Page, bounded

from .. import __version__
from ..cluster.controllership import Controllership
from ..controller import queries
from ..groups.driver import GroupDriver
from ..log.manager import LogManager
from ..replication.follower import Follower
from ..replication.partition import Partition
from ..replication.replica import Replica
from ..replication.replicas import Replicas
from ..runtime.request_memory import RequestMemory
from ..runtime.slices import cooperatively, finish, yield_to_others
from ..runtime.stats import Stats
from ..security.audit.trail import AuditTrail
from ..security.quotas.quotas import Quotas
from ..security.tls.listener_tls import CertificateState
from ..transactions.driver import TransactionDriver
from ..transactions.transaction import ONGOING
from .metric_table import LONGEST_LABEL, MOST_CLIENTS, MOST_PARTITIONS, MOST_TOPICS, TABLE

Labels = tuple[str, ...]


class Connected(Protocol):
    @property
    def is_connected(self) -> bool: ...


class Sums:
    """Sums of the replicas' counters by topic; they never fall, although replicas come and go and restart at 0."""

    def __init__(self) -> None:
        self.by_topic: dict[str, int] = {}
        self._known: dict[Replica, int] = {}
        self._found: dict[Replica, int] = {}

    def add(self, replica: Replica, count: int) -> None:
        known = self._found.get(replica)  # from an aborted scrape
        if known is None:
            known = self._known.get(replica, 0)
        topic = replica.topic
        self.by_topic[topic] = self.by_topic.get(topic, 0) + count - known
        self._found[replica] = count

    def over(self, topics: Collection[str]) -> None:
        """All replicas have been added: forget topics other than these."""
        self._known, self._found = self._found, {}
        for topic in self.by_topic.keys() - topics:
            del self.by_topic[topic]


@dataclass
class _Tally:
    """Totals over the replicas of this broker, added one by one."""

    now_ms: int
    """Of the wall clock."""
    max_transaction_timeout_ms: int
    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    max_lag: int = 0
    uncleanable: int = 0
    offline: int = 0
    open_transactions: int = 0
    late_transactions: int = 0
    """Partitions led here that have one."""
    sizes: dict[str, int] = field(default_factory=dict)
    ends: dict[Labels, float] = field(default_factory=dict)
    by_topic: dict[str, dict[str, int]] = field(default_factory=dict)
    """Sums of each metric."""
    omitted: dict[str, int] = field(default_factory=lambda: {"millstream_log_end_offset": 0})
    directories: dict[Path, int] = field(default_factory=dict)
    """Bytes of the logs in each usable directory."""
    offline_directories: list[Path] = field(default_factory=list)

    def add(self, replica: Partition | Follower) -> None:
        log = replica.log
        self.sizes[replica.topic] = self.sizes.get(replica.topic, 0) + log.size
        self.ends[replica.topic, str(replica.index)] = log.log_end_offset
        self.uncleanable += log.uncleanable
        self.offline += log.offline is not None
        if isinstance(replica, Partition):
            in_sync = len(replica.record.isr)
            self.led += 1
            self.under_replicated += in_sync < len(replica.record.replicas)
            self.under_min_isr += in_sync < replica.min_insync_replicas
            producers = log.producers
            self.open_transactions += producers.transactions.open_count
            self.late_transactions += producers.has_late_transaction(
                self.now_ms, self.max_transaction_timeout_ms
            )
            if replica.isr is not None:
                self.max_lag = max(self.max_lag, replica.isr.max_lag())


class Metrics:
    """The metrics of one broker."""

    def __init__(
        self,
        stats: Stats,
        stalls: Stalls,
        connections: Sized,
        memory: RequestMemory,
        replicas: Replicas,
        logs: LogManager,
        groups: GroupDriver,
        transactions: TransactionDriver,
        controllership: Controllership,
        coordination: Connected,
        quotas: Quotas,
        trail: AuditTrail,
        certificates: Callable[[], Iterable[CertificateState]],
    ) -> None:
        self._stats = stats
        self._stalls = stalls
        self._connections = connections
        self._memory = memory
        self._replicas = replicas
        self._logs = logs
        self._groups = groups
        self._transactions = transactions
        self._controllership = controllership
        self._coordination = coordination
        self._quotas = quotas
        self._trail = trail
        self._certificates = certificates
        self._received, self._sent, self._replicated = Sums(), Sums(), Sums()
        self._scraping = asyncio.Lock()

    async def text(self) -> bytes:
        """All metrics in Prometheus's text format, with those of the process."""
        async with self._scraping:
            page = Page(TABLE)
            found = _Tally(int(time.time() * 1000), self._transactions.max_timeout_ms)
            async for replica in cooperatively(list(self._replicas.all())):
                found.add(replica)
                self._received.add(replica, replica.received_bytes)
                self._sent.add(replica, replica.sent_bytes)
                self._replicated.add(replica, replica.replicated_bytes)
            for sums in (self._received, self._sent, self._replicated):
                sums.over(self._replicas.metadata.topics.keys())
            found.by_topic = {
                "millstream_topic_received_bytes_total": dict(self._received.by_topic),
                "millstream_topic_sent_bytes_total": dict(self._sent.by_topic),
                "millstream_topic_replicated_bytes_total": dict(self._replicated.by_topic),
                "millstream_log_bytes": found.sizes,
            }
            found.offline += len(self._replicas.unopened)
            controller = self._controllership.controller
            counts = (0, 0, 0) if controller is None else await finish(queries.count(controller.machine))
            self._add_counters(page)
            self._add_certificates(page)
            self._add_audit(page)
            await yield_to_others()
            self._add_gauges(page, found, *counts)
            found.omitted["millstream_group_committed_offset"] = await self._add_groups(page)
            await self._add_transactions(page)
            found.omitted["millstream_quota_limit"] = await self._add_quotas(page)
            found.directories = await self._sizes_of_directories()
            found.offline_directories = list(self._logs.offline)
            await asyncio.to_thread(self._logs.strays.refresh)
            strays = dict(self._logs.strays.sizes)
            page.add("millstream_stray_partitions", len(strays))
            page.add("millstream_stray_bytes", sum(strays.values()))
        return await asyncio.to_thread(_text, page, found)

    def _add_counters(self, page: Page) -> None:
        stats, stalls = self._stats, self._stalls
        page.add("millstream_broker_info", {(__version__,): 1})
        page.add_histogram(
            "millstream_request_seconds", {(name,): histogram for name, histogram in stats.apis.items()}
        )
        page.add_histogram("millstream_loop_stall_seconds", {(): stalls.by_clock})
        page.add_histogram("millstream_loop_stall_cpu_seconds", {(): stalls.by_processor})
        for name, value in (
            ("received_bytes", stats.bytes_in),
            ("sent_bytes", stats.bytes_out),
            ("connections_accepted", stats.connections_accepted),
            ("connections_throttled", stats.connections_throttled),
            ("tls_handshakes", stats.tls_handshakes),
            ("tls_handshake_failures", stats.tls_failures),
            ("records_received", stats.records_in),
            ("batches_refused", stats.records_refused),
            ("isr_shrinks", stats.isr_shrinks),
            ("isr_expands", stats.isr_expands),
            ("group_records_unreadable", self._groups.unreadable),
            ("transaction_records_unreadable", self._transactions.unreadable),
        ):
            page.add(f"millstream_{name}_total", value)
        suppressed = {(cause,): count for cause, count in stats.lines_suppressed.items()}
        page.add("millstream_connection_lines_suppressed_total", suppressed)
        failures = {(name,): count for name, count in supervision.failures.items()}
        page.add("millstream_task_failures_total", failures)

    async def _add_groups(self, page: Page) -> int:
        """Add the metrics of groups; returns the number of series left out."""
        states, members, omitted = Counter[Labels](), 0, 0
        offsets: dict[Labels, float] = {}
        async for group in cooperatively(self._groups.all()):
            states[group.state.value,] += 1
            members += len(group.members)
            shown = list(islice(group.offsets.items(), MOST_PARTITIONS - len(offsets)))
            omitted += len(group.offsets) - len(shown)
            async for (topic, partition), committed in cooperatively(shown):
                offsets[group.group_id, topic, str(partition)] = committed.offset
        page.add("millstream_groups", states)
        page.add("millstream_group_members", members)
        page.add("millstream_group_committed_offset", offsets)
        return omitted

    async def _add_transactions(self, page: Page) -> None:
        """Add the metrics of this coordinator's transactional ids."""
        states, oldest_ms = Counter[Labels](), 0
        async for _, transaction in cooperatively(self._transactions.all()):
            state = transaction.state
            states[state.label,] += 1
            if state is ONGOING or state.is_ending:
                oldest_ms = max(oldest_ms, self._transactions.wall_clock - transaction.start_timestamp)
        page.add("millstream_transactional_ids", states)
        page.add("millstream_oldest_transaction_seconds", oldest_ms / 1000)

    def _add_certificates(self, page: Page) -> None:
        states = list(self._certificates())
        page.add("millstream_tls_certificate_expiry_days", {(each.listener,): each.days for each in states})
        page.add(
            "millstream_tls_certificate_reloads_total", {(each.listener,): each.reloads for each in states}
        )
        page.add(
            "millstream_tls_certificates_refused_total", {(each.listener,): each.refused for each in states}
        )

    def _add_audit(self, page: Page) -> None:
        trail = self._trail
        page.add(
            "millstream_logins_total", {(mechanism,): count for mechanism, count in trail.logins.items()}
        )
        page.add("millstream_login_failures_total", dict(trail.login_failures))
        page.add("millstream_logins_delayed_total", trail.delayed)
        page.add(
            "millstream_denied_operations_total", {(api,): count for api, count in trail.denials.items()}
        )
        suppressed = {} if trail.log is None else trail.log.suppressed
        page.add("millstream_audit_suppressed_total", {(kind,): count for kind, count in suppressed.items()})
        page.add("millstream_audit_lost_total", 0 if trail.log is None else trail.log.lost)

    async def _add_quotas(self, page: Page) -> int:
        """Add the use of clients that have quotas; returns the number of clients left out."""
        uses = [use async for use in cooperatively(self._quotas.uses(self._quotas.now_ms()))]
        shown = sorted(uses, key=lambda use: -use.throttled_ms)[:MOST_CLIENTS]
        of_client = [(use.quota, use.user[:LONGEST_LABEL], use.client_id[:LONGEST_LABEL]) for use in shown]
        for name, values in (
            ("limit", [use.limit for use in shown]),
            ("throttled_requests_total", [use.throttled for use in shown]),
            ("throttle_seconds_total", [use.throttled_ms / 1000 for use in shown]),
        ):
            page.add(f"millstream_quota_{name}", dict(zip(of_client, values, strict=True)))
        rates = {
            labels: use.rate for labels, use in zip(of_client, shown, strict=True) if use.rate is not None
        }
        page.add("millstream_quota_rate", rates)
        return len(uses) - len(shown)

    def _add_gauges(
        self, page: Page, found: _Tally, leaderless: int, not_preferred: int, missing: int
    ) -> None:
        replicas = self._replicas
        for name, value in (
            ("connections", len(self._connections)),
            ("tasks", len(asyncio.all_tasks())),
            ("muted_connections", self._stats.muted),
            ("request_memory_bytes", self._memory.held),
            ("topics", len(replicas.metadata.topics)),
            ("partitions", len(replicas.partitions) + len(replicas.followers)),
            ("leaders", found.led),
            ("under_replicated_partitions", found.under_replicated),
            ("under_min_isr_partitions", found.under_min_isr),
            ("replica_max_lag", found.max_lag),
            ("active_controller", self._controllership.controller is not None),
            ("leaderless_partitions", leaderless),
            ("not_preferred_leaders", not_preferred),
            ("offsets_topic_missing_replicas", missing),
            ("coordination_connected", self._coordination.is_connected),
            ("group_partitions_loading", self._groups.loading),
            ("transaction_partitions_loading", self._transactions.loading),
            ("open_transactions", found.open_transactions),
            ("partitions_with_late_transactions", found.late_transactions),
            ("uncleanable_partitions", found.uncleanable),
            ("offline_log_directories", len(self._logs.offline)),
            ("offline_partitions", found.offline),
        ):
            page.add(f"millstream_{name}", value)

    async def _sizes_of_directories(self) -> dict[Path, int]:
        """The sizes of the logs in each usable directory."""
        sizes = {home.path: 0 for home in self._logs.dirs}
        for home in list(self._logs.dirs):
            async for log in cooperatively(list(home.all_logs().values())):
                sizes[home.path] += log.size
        return sizes


def _text(page: Page, found: _Tally) -> bytes:
    """In a thread: add whatever takes long to sort, and the state of the file systems, and format the page."""
    for name, values in found.by_topic.items():
        page.add(name, bounded({(topic,): value for topic, value in values.items()}, MOST_TOPICS))
    ends = found.ends
    if len(ends) > MOST_PARTITIONS:
        found.omitted["millstream_log_end_offset"] = len(ends) - MOST_PARTITIONS
        ends = dict(sorted(ends.items())[:MOST_PARTITIONS])
    page.add("millstream_log_end_offset", ends)
    page.add("millstream_series_omitted", {(name,): count for name, count in found.omitted.items()})
    free: dict[Labels, float] = {}
    capacity: dict[Labels, float] = {}
    for path in found.directories:
        try:
            system = os.statvfs(path)
        except OSError:
            continue  # it is about to be offline
        free[str(path),] = system.f_bavail * system.f_frsize
        capacity[str(path),] = system.f_blocks * system.f_frsize
    online = {**dict.fromkeys(found.offline_directories, 0), **dict.fromkeys(found.directories, 1)}
    page.add("millstream_log_directory_online", {(str(path),): is_on for path, is_on in online.items()})
    page.add(
        "millstream_log_directory_bytes", {(str(path),): size for path, size in found.directories.items()}
    )
    page.add("millstream_log_directory_free_bytes", free)
    page.add("millstream_log_directory_capacity_bytes", capacity)
    return page.text()
