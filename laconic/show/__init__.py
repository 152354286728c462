"""What a run achieved: losses and rounds, the bits they cost, and the time they would take over a
real link."""
