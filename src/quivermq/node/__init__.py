"""A broker: runs replicas on real disks, sockets and clocks, and serves requests.

Knows everything below it; must never know which transport a request came through.
"""
