"""What people look at: the report of a run, the graph of a pipeline, the index of runs."""
