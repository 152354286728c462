"""What outlives a process: checkpoints, run logs, and the atomic writes under both."""
