"""Steps whose source is a stream of Spark's."""
