"""Which topics are the cluster's own or a mirror's, and what may change in them."""
