"""Fuzzing: what reads bytes or text from outside understands them, or raises our error."""
