"""Batch loads whose driver, executor, broker or S3 dies or stalls at random moments, and what must hold all the same.

plan       which fault strikes which round, when and for how long: drawn from one seed
driver     what runs in Spark: a driver that loads one run after the other
lab        the driver's processes, the broker, the S3 server behind a gate; each fault, done and undone
tables     the table as readers that are not Spark see it, and what they may see
rounds     all of it in order: `python -m millstream_faults loads`
"""
