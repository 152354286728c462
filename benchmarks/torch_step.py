"""The learned step in PyTorch beside torch.optim.AdamW: 86.5 M parameters, the shapes of ViT-B.

    python benchmarks/torch_step.py [--steps 3] [--out FILE.json] [--small]

On a CUDA device if there is one, else on the CPU. Medians of single steps, after one that makes the
states: seconds, and on a CPU the seconds that its cores worked. The last line is one JSON object.
"""
# pyright: reportMissingImports=false

import argparse
import json
import os
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from laconic.store.records import provenance, write_json
from laconic.torch import LearnedOuter

WIDTH, DEPTH, PATCH, TOKENS, CLASSES = 768, 12, 16, 197, 1000


def shapes(width, depth):
    """As torch.nn keeps them; 86.6 million numbers at ViT-B's sizes."""
    block = [(width,)] * 4 + [(3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    ends = [(width, 3, PATCH, PATCH), (width,), (1, 1, width), (1, TOKENS, width), (width,)]
    return ends + block * depth + [(width,), (CLASSES, width), (CLASSES,)]


def timed(optimizer, steps, wait):
    """Medians of so many steps: seconds by the clock, and of all cores."""
    optimizer.step()
    times = []
    for _ in range(steps):
        wait()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        optimizer.step()
        wait()
        times.append((time.perf_counter() - begin, time.process_time() - begin_cpu))
    names = ("seconds", "cpu_seconds")
    return {
        name: statistics.median(x) for name, x in zip(names, zip(*times, strict=True), strict=True)
    }


def measure(steps, width, depth):
    """Times of a step by optimizer and way, and the sizes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    generator = torch.Generator(device).manual_seed(0)
    normal = lambda shape: torch.randn(shape, generator=generator, device=device)
    params = [torch.nn.Parameter(0.02 * normal(shape)) for shape in shapes(width, depth)]
    for p in params:
        p.grad = 0.001 * normal(p.shape)
    found = {}
    for name in ("AdamW", "lopt-a-general"):
        for foreach in (False, True):
            if name == "AdamW":
                optimizer = torch.optim.AdamW(params, 1e-4, foreach=foreach)
            else:
                optimizer = LearnedOuter(params, name, foreach=foreach)
            found[f"{name}, {'foreach' if foreach else 'loop'}"] = timed(optimizer, steps, wait)
            del optimizer
    named = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return {
        "figures": found,
        "parameters": sum(p.numel() for p in params),
        "tensors": len(params),
        "torch": {"version": version("torch"), "device": named, "threads": torch.get_num_threads()},
        "load": os.getloadavg()[0],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each")
    parser.add_argument("--small", action="store_true", help="a narrow model of one block")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    options = parser.parse_args()
    width, depth = (16, 1) if options.small else (WIDTH, DEPTH)
    begin = time.perf_counter()
    record = {"benchmark": "torch-step", "steps": options.steps}
    record |= measure(options.steps, width, depth) | {"provenance": provenance()}
    record["wall_seconds"] = time.perf_counter() - begin
    if options.out:
        write_json(options.out, record)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
