"""torchft's DiLoCo between two processes of this machine, with averaging, Nesterov and a learned
outer optimizer.

python examples/torch_diloco.py [NAME | FILE.safetensors]     # starts Lighthouses and workers
"""
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta

import torch
from sklearn.datasets import load_digits
from torch.distributed import TCPStore

import laconic.torch

os.environ.setdefault(
    "RUST_LOG", "warn"
)  # torchft reads it as it is imported, and otherwise logs every quorum
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

WORKERS, H, B, ROUNDS = 2, 4, 16, (10, 50)  # rounds after which the loss is looked at
HOST, PATIENCE = "127.0.0.1", timedelta(seconds=60)
OUTERS = {
    "averaging": lambda params: torch.optim.SGD(params, 1.0),
    "Nesterov": lambda params: torch.optim.SGD(params, 0.7, momentum=0.9, nesterov=True),
    "learned": lambda params: laconic.torch.LearnedOuter(params, sys.argv[1]),  # all that changes
}


def train(outer_name, manager, rank, gamma):
    """Rounds of H local steps on this worker's half of the digits → losses, and a hash of what the
    model became."""
    images, labels = load_digits(return_X_y=True)
    X, Y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)  # the same weights everywhere
    layers = (
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )
    model = torch.nn.Sequential(*layers)
    mine, generator = torch.arange(rank, len(X), WORKERS), torch.Generator().manual_seed(rank)
    local, outer, losses = (
        torch.optim.SGD(model.parameters(), gamma),
        OUTERS[outer_name](model.parameters()),
        [],
    )
    with DiLoCo(manager, [model], local, outer, sync_every=H):
        for stop in ROUNDS:
            while manager.current_step() < stop:
                rows = mine[torch.randint(len(mine), (B,), generator=generator)]
                local.zero_grad()
                torch.nn.functional.cross_entropy(model(X[rows]), Y[rows]).backward()
                local.step()  # every H-th one also averages the deltas and takes the outer step
            with torch.no_grad():
                losses.append(float(torch.nn.functional.cross_entropy(model(X), Y)))
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {"outer": outer_name, "losses": losses, "weights": hashlib.sha256(weights).hexdigest()}


def worker(name, rank, *lighthouses):
    """One process: every outer optimizer in turn, each with a Lighthouse of its own."""
    torch.set_num_threads(1)
    gamma = laconic.torch.LearnedOuter([torch.zeros(1)], name).card.local["learning_rate"]
    for outer_name, lighthouse in zip(OUTERS, lighthouses, strict=True):
        store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        manager = Manager(
            pg=ProcessGroupGloo(timeout=PATIENCE),
            load_state_dict=None,
            state_dict=None,
            min_replica_size=WORKERS,
            use_async_quorum=False,  # DiLoCo's demand
            init_sync=False,  # the weights are the same already
            timeout=PATIENCE,
            quorum_timeout=PATIENCE,
            rank=0,
            world_size=1,
            store_addr=HOST,
            store_port=store.port,
            lighthouse_addr=lighthouse,
            replica_id=f"{outer_name}-{rank}",
            hostname=HOST,
        )
        print(json.dumps(train(outer_name, manager, int(rank), gamma)), flush=True)
        manager.shutdown(wait=False)


def main(name):
    lighthouses = [LighthouseServer(bind=f"{HOST}:0", min_replicas=WORKERS) for _ in OUTERS]
    addresses = [f"http://{HOST}:{server.address().rsplit(':', 1)[1]}" for server in lighthouses]
    command = [sys.executable, __file__, name, "--worker"]
    # Files, not pipes: a worker whose full pipe nobody reads would stand still, and the other wait
    # for it.
    outs, errs = ([tempfile.TemporaryFile("w+") for _ in range(WORKERS)] for _ in range(2))  # noqa: SIM115
    processes = [
        subprocess.Popen([*command, str(rank), *addresses], stdout=outs[rank], stderr=errs[rank])
        for rank in range(WORKERS)
    ]
    codes = [process.wait() for process in processes]
    for server in lighthouses:
        server.shutdown()
    for file in outs + errs:
        file.seek(0)
    if any(codes):
        sys.exit("a worker failed:\n" + "\n".join(file.read()[-3000:] for file in errs))
    for replies in zip(*(map(json.loads, out) for out in outs), strict=True):
        agree = "agree" if len({reply["weights"] for reply in replies}) == 1 else "DIFFER"
        early, late = replies[0]["losses"]
        print(
            f"{replies[0]['outer']}: loss {early:.4f} after {ROUNDS[0]} rounds, {late:.4f} after "
            f"{ROUNDS[1]}; ",
            end="",
        )
        print(f"the workers' weights {agree}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(sys.argv[1], *sys.argv[3:])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "lopt-a-digits")
