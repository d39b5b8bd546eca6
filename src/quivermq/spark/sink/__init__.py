"""Writing DataFrames to topics exactly once: tasks stage rows, the driver decides and publishes."""
