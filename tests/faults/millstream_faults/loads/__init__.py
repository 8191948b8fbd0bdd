"""Batch loads whose driver, executor, broker or S3 dies or stalls at random moments; the invariants still hold.

plan       the kinds of faults; `draws` has which strikes which round, when and for how long
driver     the program that runs in Spark: a driver that loads one run after the other
lab        the driver's processes, the broker, the S3 server behind a gate; each fault, done and undone
tables     the table as readers other than Spark see it, and what they may see
rounds     runs all of it in order: `python -m millstream_faults loads`
"""
