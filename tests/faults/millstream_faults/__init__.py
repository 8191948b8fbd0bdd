"""A cluster, clients that write down all they are told, faults drawn from a seed, and what must hold whatever breaks.

plan         which faults, when, and which may come together
isolation    namespaces of one's own for processes, mounts and networks; cutting brokers off
lab          the cluster: brokers, ZooKeeper, disks; who leads, who is the controller
faults       each kind of fault, done and undone
administration   what administrators do: topics made anew, configuration altered, groups deleted
hostile      a client that means harm
topics       the topics of a run, and which topic id a request can have met
workers      the clients, in processes of their own: writers, readers, a visitor
history      what they were told, as lines of JSON
checker      the invariants over a whole history; `compacted` and `positions` have some of their own
replicas     the logs on the brokers' disks
story        what happened to one record
report       the summary and the timeline
run          all of it in order
loads        the same for batch loads
"""
