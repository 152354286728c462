"""The learned steps in PyTorch beside torch.optim.AdamW: 86.5 M parameters, the shapes of ViT-B.

    python benchmarks/torch_step.py [--steps 3] [--out FILE.json] [--small]

On a CUDA device if there is one, else on the CPU. Medians of single steps, after one that makes the
states: seconds, and on a CPU the seconds that its cores worked, on CUDA the memory that a step
takes beside parameters, gradients and states. There the learned steps of a small model are also
compared with the CPU's. The last line is one JSON object.
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

LEARNED = ("lopt-a-general", "lopt-r")
WIDTH, DEPTH, PATCH, TOKENS, CLASSES = 768, 12, 16, 197, 1000


def shapes(width, depth):
    """As torch.nn keeps them; 86.6 million numbers at ViT-B's sizes."""
    block = [(width,)] * 4 + [(3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    ends = [(width, 3, PATCH, PATCH), (width,), (1, 1, width), (1, TOKENS, width), (width,)]
    return ends + block * depth + [(width,), (CLASSES, width), (CLASSES,)]


def parameters(width, depth, device):
    """A model's parameters, each with a gradient."""
    generator = torch.Generator("cpu").manual_seed(0)  # the same on every device
    normal = lambda shape: torch.randn(shape, generator=generator).to(device)
    params = [torch.nn.Parameter(0.02 * normal(shape)) for shape in shapes(width, depth)]
    for p in params:
        p.grad = 0.001 * normal(p.shape)
    return params


def timed(optimizer, steps, device):
    """Medians of so many steps: seconds by the clock, and of all cores; the memory it takes."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    optimizer.step()
    times = []
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    for _ in range(steps):
        wait()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        optimizer.step()
        wait()
        times.append((time.perf_counter() - begin, time.process_time() - begin_cpu))
    names = ("seconds", "cpu_seconds")
    found = {
        name: statistics.median(x) for name, x in zip(names, zip(*times, strict=True), strict=True)
    }
    if device.type == "cuda":
        found["temporary_bytes"] = torch.cuda.max_memory_allocated() - before
    return found


def ways(params, device):
    """Every optimizer in every way it can step: its label, and what makes it."""
    adamw = [{"foreach": False}, {"foreach": True}]
    adamw += [{"fused": True}] if device.type == "cuda" else []
    for options in adamw:
        (way, on), *_ = options.items()
        label = f"AdamW, {way if on else 'loop'}"
        yield label, lambda options=options: torch.optim.AdamW(params, 1e-4, **options)
    for name in LEARNED:
        for on in (False, True):
            label = f"{name}, {'foreach' if on else 'loop'}"
            yield label, lambda name=name, on=on: LearnedOuter(params, name, foreach=on)


def apart(name, device):
    """How far a device's steps of a small model are from the CPU's, relative to their length."""
    moved = []
    for home in (torch.device("cpu"), device):
        params = parameters(16, 1, home)
        before = [p.detach().clone() for p in params]
        outer = LearnedOuter(params, name, foreach=home.type != "cpu")
        for _ in range(3):
            outer.step()
        moved.append([(p.detach() - x).cpu() for p, x in zip(params, before, strict=True)])
    return max(
        ((mine - theirs).norm() / theirs.norm()).item() for theirs, mine in zip(*moved, strict=True)
    )


def measure(steps, width, depth):
    """Times of a step by optimizer and way, and the sizes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    params = parameters(width, depth, device)
    found = {}
    for label, make in ways(params, device):
        optimizer = make()
        found[label] = timed(optimizer, steps, device)
        print(label, found[label], file=sys.stderr, flush=True)
        del optimizer
    named = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    like_cpu = {} if device.type == "cpu" else {name: apart(name, device) for name in LEARNED}
    return {
        "figures": found,
        "parameters": sum(p.numel() for p in params),
        "tensors": len(params),
        "torch": {"version": version("torch"), "device": named, "threads": torch.get_num_threads()},
        "relative_difference_from_cpu": like_cpu,
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
