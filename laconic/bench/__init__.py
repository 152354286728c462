"""What `laconic bench` measures: the server's step, its overhead, meta-training and the round, each
as a record."""
