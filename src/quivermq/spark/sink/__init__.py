"""Writing DataFrames to topics exactly once.

writers        the entry points that Spark calls
columns        maps columns to parts of messages
destinations   finds the partition of each row
staging        stores the rows of a task attempt
staged_runs    the value that describes staged rows
decisions      decides which attempt counts
publishing     copies the rows that count to their topics
"""
