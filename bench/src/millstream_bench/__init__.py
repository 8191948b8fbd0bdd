"""Millstream beside Apache Kafka on one machine, in one run, with the same clients.

run.py         the command: rounds, peers in turn, results.json
peers.py       the two brokers, started alike, their logs on the same kind of file system
clusters.py    three of each, with what they need beside them
mirrors.py     a mirror between two brokers of Millstream: our worker, or MirrorMaker 2
process.py     CPU seconds and resident memory of a process, from /proc
figures.py     what is measured, what is better, what is the goal; medians and ratios
results.py     the file of results
wire.py        a minimal client: the least that an acknowledged record takes
perf.py        Kafka's own ProducerPerformance and ConsumerPerformance
workloads/     what the brokers are asked to do
document.py    the tables of docs/performance.md
plots.py       its plots
"""
