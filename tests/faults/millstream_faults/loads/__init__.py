"""Batch loads whose driver, executor, broker, S3 or operator dies or stalls; the invariants still hold.

plan       the kinds of faults; `draws` has which strikes which round, when and for how long
driver     the program that runs in Spark: a driver that loads one run after the other
lab        the driver's processes, the broker, the S3 server behind a gate; each fault, done and undone
operated   the same for `millstream local`: the operator may die, too
tables     the table as readers other than Spark see it, and what they may see
rounds     runs all of it in order: `python -m millstream_faults loads`
"""
