"""Doors into a broker: each turns bytes into requests and calls the one `Service`."""
