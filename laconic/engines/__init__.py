"""Workers as real processes: who takes part in a round, how messages cross, and what happens when
one dies."""
