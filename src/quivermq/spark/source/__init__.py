"""Reading topics in Spark: options, planning in the driver, Arrow batches in the tasks."""
