"""What a pipeline remembers between runs, and how a run keeps it."""
