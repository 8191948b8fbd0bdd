"""Completeness of topics and tables: what was produced, what the log has, what tables have, window by window.

file      AUDIT.json
extents   which offsets of each partition are counted, and what retention has deleted
reported  what producers say they have sent
counts    all of it joined: a row for each topic, window and server
page      the report in HTML; `bars` draws its plots
"""
