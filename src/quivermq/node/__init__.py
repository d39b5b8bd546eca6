"""A broker: runs replicas on real disks, sockets and clocks, and serves requests."""
