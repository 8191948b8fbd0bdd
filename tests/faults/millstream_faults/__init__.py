"""A cluster, clients that record every answer, faults drawn from a seed, and the invariants that must hold.

plan         which faults strike, when, and which may overlap
isolation    namespaces for processes, mounts and networks; cutting brokers off
lab          the cluster: brokers, ZooKeeper, disks; who leads, who is the controller
roles        whom a fault strikes
faults       each kind of fault, done and undone
directories  faults of log directories that move
trees        faults of the tree in ZooKeeper, and `ensemble`, the data of its servers
clocks       brokers whose clock is wrong, by `shifted`
administration   what administrators do: recreate topics, alter configuration, delete groups
hostile      a malicious client
topics       the topics of a run, and which topic id a request can have met
workers      the clients, each in its own process: writers, readers, a visitor
history      the answers that clients got, as lines of JSON
transactors  those of transactions; `newer` sends the requests of version 2
checker      the invariants over a whole history; `compacted`, `positions`, `strays` and `transacted` add their own
replicas     the logs on the brokers' disks
story        what happened to one record
report       the summary and the timeline
run          runs all of it in order
loads        the same for batch loads
mirrors      the same for mirrors between two clusters
draws        the faults of `loads` and `mirrors`, one a round
options      the command line options that all three share
"""
