"""Consuming by sticky groups: each partition has one owner, in order."""
