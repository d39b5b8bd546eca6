"""Archiving topics to Delta tables with Spark, and replaying them."""
