"""Millstream beside Apache Kafka on one machine, in one run, with the same clients.

run.py         the command: rounds, peers in turn, results.json
peers.py       the two brokers, started alike, their logs on the same kind of file system
clusters.py    three of each, with ZooKeeper for Millstream
mirrors.py     a mirror between two brokers of either kind: our worker, or MirrorMaker 2
process.py     CPU seconds and resident memory of a process, from /proc
figures.py     figures with their units, directions and goals; medians and ratios
results.py     the file of results
wire.py        a minimal client, for the shortest path to an acknowledged record
perf.py        Kafka's own ProducerPerformance and ConsumerPerformance
workloads/     the brokers' workloads
document.py    the tables of docs/performance.md; operator_document.py the one about the operator
plots.py       its plots
"""
