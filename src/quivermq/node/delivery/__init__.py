"""Delivering leased messages: who waits for them, at which rate, and where dead letters go."""
