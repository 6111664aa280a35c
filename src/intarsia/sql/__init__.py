"""SQL text in, expressions out; sqlglot is imported in parse.py and nowhere else."""
