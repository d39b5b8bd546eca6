"""Tables on disk or in a store: Delta tables that hold what topics held, and say up to where.

Knows the client; knows nothing of Spark.
"""
