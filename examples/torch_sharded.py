"""Workers that are sharded themselves: DiLoCo's rounds between workers, FSDP2 within each, and a
learned outer step on the shards (DTensors), as a trainer in the style of torchtitan has them.

python examples/torch_sharded.py [--folder runs/sharded] [--rounds 12]      # four processes: 2 × 2
torchrun --nproc-per-node 4 examples/torch_sharded.py

A run that was stopped goes on from its last checkpoint when it is started again.
"""
# pyright: reportMissingImports=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false

import argparse
import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import TCPStore
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from workers import HOST, start, windows

import laconic.torch

WORKERS, SHARDS, H, B, CONTEXT = 2, 2, 4, 8, 64
EVERY = 4  # rounds from checkpoint to checkpoint
WIDTH, HEADS, LAYERS, BYTES = 48, 4, 2, 256


class Decoder(torch.nn.Module):
    """A causal transformer on bytes: rows of them → the loss."""

    def __init__(self):
        super().__init__()
        layer = lambda: torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.tokens = torch.nn.Embedding(BYTES, WIDTH)
        self.places = torch.nn.Embedding(CONTEXT, WIDTH)
        self.layers = torch.nn.ModuleList(layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, BYTES)

    def forward(self, rows):
        x, y = rows[:, :-1], rows[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return torch.nn.functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


# --8<-- [start:round]
def communication_round(model, local, outer, batches, workers):
    """H local steps of this worker, then the same learned step in all of them, each process on
    its shards; `workers` is the group of the processes that hold the same shards."""
    before = [p.detach().clone() for p in model.parameters()]
    for rows in batches:
        local.zero_grad()
        model(rows).backward()
        local.step()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before, strict=True):
            p.grad = old - p
            dist.all_reduce(p.grad.to_local(), group=workers)  # shards only: 1/SHARDS of the bytes
            p.grad /= dist.get_world_size(workers)
            p.copy_(old)
    outer.step()


# --8<-- [end:round]


# --8<-- [start:checkpoint]
def state_of(model, local, outer, worker):
    """For torch.distributed.checkpoint, which fits it to other numbers of shards too. The model and
    the outer optimizer are the same in all workers; local optimizers are not."""
    return {
        "model": get_model_state_dict(model),
        "outer": get_optimizer_state_dict(model, outer),
        f"local-{worker}": get_optimizer_state_dict(model, local),
    }


def resume(model, local, outer, worker, folder):
    """The rounds that the newest finished checkpoint has behind it, which it goes on from."""
    finished = (int(path.parent.name) for path in folder.glob("*/.metadata"))  # written last
    done = max(finished, default=0)
    if done:
        state = state_of(model, local, outer, worker)
        dcp.load(state, checkpoint_id=folder / str(done))
        set_model_state_dict(model, state["model"])
        set_optimizer_state_dict(model, outer, state["outer"])
        set_optimizer_state_dict(model, local, state[f"local-{worker}"])
    return done


# --8<-- [end:checkpoint]


def train(rank, folder, rounds):
    """One process: a shard of one worker."""
    mesh = init_device_mesh("cpu", (WORKERS, SHARDS), mesh_dim_names=("workers", "shards"))
    worker = mesh.get_local_rank("workers")
    torch.manual_seed(0)  # the same weights everywhere
    model = Decoder()
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh["shards"])
    outer = laconic.torch.LearnedOuter(model.parameters(), "lopt-a-general", foreach=True)
    local = outer.recommended_local(model.parameters())
    text = windows(worker, WORKERS, CONTEXT)
    done = resume(model, local, outer, worker, folder)
    while done < rounds:
        generator = torch.Generator().manual_seed(1000 * done + worker)
        rows = torch.randint(len(text), (H, B), generator=generator)
        communication_round(model, local, outer, text[rows], mesh.get_group("workers"))
        done += 1
        if done % EVERY == 0:
            dcp.save(state_of(model, local, outer, worker), checkpoint_id=folder / str(done))
            if rank == 0:
                print(f"round {done}: saved", flush=True)
    weights = b"".join(p.full_tensor().detach().numpy().tobytes() for p in model.parameters())
    with torch.no_grad():
        loss = float(model(text[:64]))
    digest = hashlib.sha256(weights).hexdigest()
    if mesh.get_local_rank("shards") == 0:
        print(f"worker {worker}: loss {loss:.4f}, weights {digest}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/sharded"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    asked = parser.parse_args()
    if asked.rank is None and "RANK" not in os.environ:
        start(__file__, WORKERS * SHARDS, *sys.argv[1:])
        return
    torch.set_num_threads(1)
    if asked.rank is None:
        dist.init_process_group("gloo")  # torchrun has said who and where
    else:
        store, size = TCPStore(HOST, asked.port, is_master=False), WORKERS * SHARDS
        dist.init_process_group("gloo", store=store, rank=asked.rank, world_size=size)
    train(dist.get_rank(), asked.folder, asked.rounds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
