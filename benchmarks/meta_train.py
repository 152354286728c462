"""`laconic bench meta-train` as a script: rounds a second, and the last line is one JSON object.

python benchmarks/meta_train.py                      K = 8, H = 4, B = 128, 8 pairs, T = 50
python benchmarks/meta_train.py --precision highest  … with matrix products in full float32
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laconic.bench.meta_train import MetaTrainConfig, measure
from laconic.store.records import plain, provenance, write_json


@dataclass(frozen=True)
class ScriptConfig(MetaTrainConfig):
    """As `laconic bench meta-train` takes it."""

    out: Path | None = None
    """Also write the figures to this JSON file."""


def main() -> None:
    options = tyro.cli(ScriptConfig, description=__doc__)
    shared = {name: getattr(options, name) for name in MetaTrainConfig.__dataclass_fields__}
    found = measure(MetaTrainConfig(**shared))
    for architecture, figures in found["figures"].items():
        print(f"{architecture}: {figures['rounds_per_second']:,} rounds/s", flush=True)
    record = {"benchmark": "meta-train", **found, "provenance": provenance()}
    if options.out:
        write_json(options.out, record)
    print(json.dumps(plain(record)))


if __name__ == "__main__":
    main()
