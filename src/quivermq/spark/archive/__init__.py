"""Archiving topics to Delta tables, and replaying them.

archive         a topic and its table: the next range, its job and its commit
loop            archives continuously
tasks           copies whole messages to files
json_payloads   parses JSON values into columns
writer          writes and commits one range
replay          publishes messages of a table again
"""
