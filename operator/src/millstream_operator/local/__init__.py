"""The local runtime: the operator's resources and plans on a machine without Kubernetes.

manifests   YAML files -> validated resources, or every problem in them at once
schema      the CRDs' OpenAPI schemas: defaults and validation, as the API server does them
state       DATA/state.json (what a Kubernetes API server would hold) and the lock on the data folder
folder      creates folders and processes, and saves that before it uses them
processes   daemons known by pid and start time
clusters, mirrors, spark   what StatefulSets, a Deployment and a Job are on Kubernetes
zookeeper   the server of a Cluster that brings its own
observing       brokers as `up` and `status` see them
java        what ZooKeeper and Spark run on
runtime     LocalRuntime: up, status, down
command     `millstream local …`
"""
