"""TPC-H's refresh functions and LHBench's merges, against the peers: ``python -m bench.tpch --help``."""
