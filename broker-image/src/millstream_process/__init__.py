"""What each of Millstream's asyncio processes runs on.

loop            the event loop, which measures how long each step keeps it
supervision     tasks with names, none of which ends unnoticed
http            a small server, for probes and metrics
histogram       one of Prometheus
"""
