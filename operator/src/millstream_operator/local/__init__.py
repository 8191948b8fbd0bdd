"""The local runtime: the operator's resources and plans on a machine without Kubernetes.

manifests   YAML files -> validated resources, or every problem in them at once
schema      the CRDs' OpenAPI schemas: defaults and validation, as in the API server
state       DATA/state.json (the part of a Kubernetes API server's storage) and the lock on the data folder
folder      creates folders and processes, and saves that before it uses them
processes   daemons identified by pid and start time
clusters, mirrors, spark   the counterparts of StatefulSets, a Deployment and a Job
zookeeper   the server of a Cluster that runs its own; zookeeper_login: the password of its brokers there
observing   read-only connections to brokers, for `status`
java        finds Java and pyspark, for ZooKeeper and Spark
runtime     LocalRuntime: up, status, down
command     `millstream local …`
"""
