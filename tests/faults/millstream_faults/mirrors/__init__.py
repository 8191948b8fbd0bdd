"""Two clusters of three brokers, and workers of both modes between them; all die, stall or change at random.

plan       the kinds of faults; `draws` has which strikes which round and for how long
lab        both clusters, the link between them, workers at either end of it, and producers
faults     each fault, done and undone
checks     the invariants of the topics' copies and of a group's positions
rounds     runs all of it in order: `python -m millstream_faults mirrors`
"""
