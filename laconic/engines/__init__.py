"""Workers as real processes: who takes part in a round, how messages travel, how a run survives."""
