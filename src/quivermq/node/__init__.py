"""A broker: the replicas of one machine, their disk, and the links to its peers."""
