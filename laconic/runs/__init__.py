"""Resumable runs: the simulator, compare, sweep, train and meta-train, each into its own folder."""
