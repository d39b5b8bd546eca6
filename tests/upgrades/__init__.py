"""Releases side by side: what they refuse of each other, and what they have to read."""
