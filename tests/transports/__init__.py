"""Doors into a broker."""
