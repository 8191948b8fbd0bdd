"""`millstream transaction list | describe | find-hanging | abort`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from millstream.administering.transactions import (
    LONGEST_MS,
    STATES,
    OpenTransaction,
    abort,
    describe_transaction,
    find_hanging,
    known_partitions,
    list_transactions,
    open_transactions,
)
from millstream.errors import BadInput, Failed
from millstream.options import TOPIC, Seconds, Settings, Whole, common, confirm, dry_run, yes
from millstream.output import show, show_table, tell
from millstream.words import count

HEAD = ("TOPIC", "PARTITION", "START OFFSET", "PRODUCER ID", "EPOCH", "LAST RECORD", "LEADER")
PARTITION = Whole(0)


@click.group()
@common
def transaction() -> None:
    """List and describe transactions; find and abort those that hang."""


@transaction.command("list")
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only in this state; repeatable."
)
@click.option(
    "--producer-id", "producer_ids", type=Whole(0), multiple=True, metavar="N",
    help="Only those of this producer id; repeatable.",
)  # fmt: skip
@click.option(
    "--older-than", type=Seconds(0), metavar="SECONDS",
    help="Only those whose transaction began so long ago, and those without one.",
)  # fmt: skip
@click.option("--pattern", metavar="REGEX", help="Only transactional ids that this expression matches whole.")
@common
@click.pass_obj
def transaction_list(
    settings: Settings,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    older_than: float | None,
    pattern: str | None,
) -> None:
    """List the transactional ids that brokers know, with the state of the last transaction."""
    found = list_transactions(
        settings.cluster,
        states=states,
        producer_ids=producer_ids,
        older_than_ms=None if older_than is None else int(older_than * 1000),
        pattern=pattern or "",
    )
    rows = [
        (transaction.transactional_id, transaction.state, transaction.producer_id, transaction.broker)
        for transaction in found
    ]
    head = ("TRANSACTIONAL ID", "STATE", "PRODUCER ID", "COORDINATOR")
    show(settings, [asdict(transaction) for transaction in found], head, rows)


@transaction.command("describe")
@click.argument("transactional_id", metavar="TRANSACTIONAL_ID")
@common
@click.pass_obj
def transaction_describe(settings: Settings, transactional_id: str) -> None:
    """Show a transactional id: its state, its producer, and the partitions of its transaction."""
    found = describe_transaction(settings.cluster, transactional_id)
    if settings.output == "table":
        click.echo(
            f"transactional id {transactional_id}, {found.state}, producer id {found.producer_id}, epoch"
            f" {found.producer_epoch}, coordinator {found.broker}, timeout {found.timeout_ms / 1000:g} s,"
            f" began {_moment(found.started_ms)}"
        )
    as_json = asdict(found) | {
        "partitions": [{"topic": topic, "partition": number} for topic, number in found.partitions]
    }
    if found.partitions or settings.output == "json":
        show(settings, as_json, ("TOPIC", "PARTITION"), found.partitions)


def _of_partition(command: click.decorators.FC) -> click.decorators.FC:
    command = click.option(
        "--partition", "-p", type=PARTITION, metavar="N", help="Only this partition of --topic."
    )(command)
    return click.option("--topic", "-t", type=TOPIC, help="Only this topic (default: all).")(command)


@transaction.command("find-hanging")
@_of_partition
@click.option(
    "--older-than", type=Seconds(0), metavar="SECONDS", default=LONGEST_MS / 1000, show_default=True,
    help="Without records for so long: transaction.max.timeout.ms of the brokers or longer.",
)  # fmt: skip
@common
@click.pass_obj
def transaction_find_hanging(
    settings: Settings, topic: str | None, partition: int | None, older_than: float
) -> None:
    """List transactions that are open in a log, and that no coordinator knows: nobody will end them."""
    _check_partition(topic, partition)
    found = find_hanging(settings.cluster, topic, partition, int(older_than * 1000))
    show(settings, [asdict(transaction) for transaction in found], HEAD, _rows(found))


@transaction.command("abort")
@_of_partition
@click.option("--start-offset", type=Whole(0), metavar="N", help="The transaction that begins there.")
@click.option("--producer-id", type=Whole(0), metavar="N", help="The transactions of this producer.")
@dry_run
@yes
@common
@click.pass_obj
def transaction_abort(
    settings: Settings,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    producer_id: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Abort a transaction that hangs: its records are never read. Asks for confirmation.

    Name it by --topic, --partition and --start-offset, as find-hanging shows them, or by --producer-id. A transaction
    that its coordinator knows is refused: its producer ends it, or its timeout.
    """
    _check_partition(topic, partition)
    if start_offset is not None and partition is None:
        raise BadInput("transaction abort: --start-offset needs a partition", "add --topic and --partition")
    if start_offset is None and producer_id is None:
        raise BadInput(
            "transaction abort: no transaction is named",
            "give --topic, --partition and --start-offset, or --producer-id",
        )
    cluster = settings.cluster
    chosen = [
        transaction
        for transaction in open_transactions(cluster, topic, partition)
        if start_offset in (None, transaction.start_offset) and producer_id in (None, transaction.producer_id)
    ]
    if not chosen:
        raise Failed(
            "there is no such open transaction", "see millstream transaction find-hanging; it may have ended"
        )
    known = known_partitions(cluster, {transaction.producer_id for transaction in chosen})
    for transaction in chosen:
        if details := known[transaction.producer_id].get((transaction.topic, transaction.partition)):
            raise Failed(
                f'the transaction in {transaction.topic}/{transaction.partition} does not hang: it is that of "'
                f'{details.transactional_id}", {details.state}',
                f"its coordinator, broker {details.broker}, ends it {details.timeout_ms / 1000:g} s after its"
                " start at the latest, once it reaches the leaders of all its partitions",
            )
    if settings.output == "table":
        show_table(HEAD, _rows(chosen))
    if dry_run:
        done = {"transactions": [asdict(transaction) for transaction in chosen], "dry_run": True}
        tell(settings, done, "nothing was changed (--dry-run)")
        return
    what = count(len(chosen), "transaction")
    confirm("transaction abort", f"Abort {what}? Consumers never get these records.", yes=yes)
    for transaction in chosen:
        abort(cluster, transaction)
    done = {"transactions": [asdict(transaction) for transaction in chosen], "dry_run": False}
    tell(settings, done, f"aborted {what}")


def _check_partition(topic: str | None, partition: int | None) -> None:
    if partition is not None and topic is None:
        raise BadInput("--partition names no topic", "add --topic")


def _rows(found: Sequence[OpenTransaction]) -> list[tuple[object, ...]]:
    return [
        (
            transaction.topic,
            transaction.partition,
            transaction.start_offset,
            transaction.producer_id,
            transaction.producer_epoch,
            _moment(transaction.last_ms),
            transaction.broker,
        )
        for transaction in found
    ]


def _moment(time_ms: int | None) -> str:
    """In UTC; "-" without one."""
    if time_ms is None or time_ms < 0:
        return "-"
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ms / 1000))
    except (OverflowError, OSError, ValueError):  # producers choose timestamps
        return str(time_ms)
