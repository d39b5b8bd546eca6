"""Producing: batches gathered, numbered, sent and confirmed."""
