"""Completeness of topics and tables: compares records produced, in the log, and in tables, window by window.

file      AUDIT.json
extents   the counted offsets of each partition, and the records that retention has deleted
reported  the numbers of records in producers' reports
counts    joins them: a row for each topic, window and server
page      the report in HTML; `bars` draws its plots
"""
