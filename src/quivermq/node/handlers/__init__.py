"""Requests and their answers, one module for each family of requests."""
