"""Ready settings by name: methods to compare, and whole comparisons."""
