"""The paper's experiments, one command each: as data, carried out, and beside the paper's own
numbers."""
