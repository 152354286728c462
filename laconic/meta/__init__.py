"""Meta-training: gradient estimators, the runs they unroll, and the trainer."""
