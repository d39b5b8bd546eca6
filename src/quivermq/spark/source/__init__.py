"""Reading topics in Spark.

options           what a query asks for
batch_reader      plans `spark.read`
stream_reader     plans `spark.readStream`
planning          turns ranges into tasks, and reports lost messages
filters           narrows ranges by the query's conditions
offsets, ranges   the values that are planned with
task_reader       reads a range in a task
columns           converts stored batches to Spark's schema
archived_ranges   reads from the archive what the log has dropped
"""
