"""Consuming by shared groups: leases, settlements, prefetching."""
