"""`laconic bench round` as a script: every number on a line, and the last line is one JSON object.

python benchmarks/round.py [--rounds 20] [--parameters 10000000] [--repeats 5]
"""

import json
import sys
from pathlib import Path

import tyro

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from laconic.bench.round import RoundConfig, measure
from laconic.store.records import provenance


def main():
    found = measure(tyro.cli(RoundConfig, description=__doc__))
    figures = {name: value for name, value in found.items() if name != "figures"}
    for name, value in figures.items():
        print(f"{name:42} {value}")
    print(json.dumps({"benchmark": "round", **figures, **provenance()}))


if __name__ == "__main__":
    main()
