"""Foundations of Millstream's asyncio processes.

loop            the event loop, which measures how long each step holds it
supervision     named tasks, none of which fails unnoticed
listening       addresses to listen on, in both families
http            a small server, for probes and metrics
histogram       a Prometheus histogram
"""
