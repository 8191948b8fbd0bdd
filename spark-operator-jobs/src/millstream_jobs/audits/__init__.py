"""Completeness of topics and tables: compares records produced, in the log, and in tables, window by window.

file      AUDIT.json
extents   which offsets of each partition are counted, and what retention has deleted
reported  how many records producers report
counts    joins them: a row for each topic, window and server
page      the report in HTML; `bars` draws its plots
"""
