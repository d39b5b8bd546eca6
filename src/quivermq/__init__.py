"""QuiverMQ: a message queue whose log holds Apache Arrow record batches."""

__version__ = "0.1.0.dev0"
