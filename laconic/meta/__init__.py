"""Meta-training: gradient estimators for learned optimizers, the runs they unroll, and the trainer."""
