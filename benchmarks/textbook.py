"""The frozen textbook step, which lies in the package (`laconic/bench/textbook.py`); run, it prints
time and memory."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from laconic.bench.textbook import init, main, step

__all__ = ["init", "main", "step"]

if __name__ == "__main__":
    main()
