"""laconic: learned aggregation for communication-efficient training."""
