"""An independent check of every published number against the records: NumPy and the standard
library, nothing of the package. `make evidence-check` runs it."""
