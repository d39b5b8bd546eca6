"""Starting Spark sessions: Java, the Python of the workers, our package on executors."""
