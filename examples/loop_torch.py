"""A training loop in PyTorch, then the same model in rounds of local steps with a learned outer
step.

python examples/loop_torch.py
"""
# pyright: reportMissingImports=false

from copy import deepcopy

import torch
from loop_digits import OPTIMIZER, ROUNDS, B, H, K, test_x, test_y, x, y

import laconic.torch

# --8<-- [start:before]
X, Y = torch.tensor(x), torch.tensor(y)
TEST_X, TEST_Y = torch.tensor(test_x), torch.tensor(test_y)
loss = torch.nn.CrossEntropyLoss()


def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def train(model, optimizer, X, Y, steps, generator):
    for _ in range(steps):
        rows = torch.randint(len(X), (B,), generator=generator)
        optimizer.zero_grad()
        loss(model(X[rows]), Y[rows]).backward()
        optimizer.step()


# --8<-- [end:before]


# --8<-- [start:rounds]
def train_in_rounds(model, new_local, outer, rounds):
    generator = torch.Generator().manual_seed(1)
    shards = [(X[k::K], Y[k::K]) for k in range(K)]  # each worker has its own part of the data
    for _ in range(rounds):
        deltas = [torch.zeros_like(p) for p in model.parameters()]
        for shard in shards:  # on K machines: at the same time
            worker = deepcopy(model)
            train(worker, new_local(worker.parameters()), *shard, H, generator)
            for delta, p, after in zip(
                deltas, model.parameters(), worker.parameters(), strict=True
            ):
                delta += (p - after).detach() / K  # on K machines: an all-reduce
        for p, delta in zip(model.parameters(), deltas, strict=True):
            p.grad = delta  # W_before − W_after points uphill, as a gradient does
        outer.step()


# --8<-- [end:rounds]


# --8<-- [start:check]
def check_it_helps():
    """Averaging and the learned outer step on one budget: K·H·ROUNDS local steps."""
    recommended = laconic.torch.LearnedOuter([torch.zeros(1)], OPTIMIZER).recommended_local
    average = lambda params: torch.optim.SGD(params, 1.0)
    nesterov = lambda params: torch.optim.SGD(params, 0.7, momentum=0.9, nesterov=True)
    learned = lambda params: laconic.torch.LearnedOuter(params, OPTIMIZER)
    rows = {
        "averaging": (recommended, average),
        "averaging, tuned rate": (lambda params: torch.optim.SGD(params, 1.0), average),
        "Nesterov 0.7 / 0.9": (lambda params: torch.optim.SGD(params, 0.3), nesterov),
        OPTIMIZER: (recommended, learned),
    }
    for name, (new_local, new_outer) in rows.items():
        model = new_model()
        train_in_rounds(model, new_local, new_outer(model.parameters()), ROUNDS)
        with torch.no_grad():
            found = float(loss(model(X), Y)), float(loss(model(TEST_X), TEST_Y))
        print(f"{name:24} train loss {found[0]:.4f}, test loss {found[1]:.4f}")


# --8<-- [end:check]

if __name__ == "__main__":
    torch.set_num_threads(1)  # the model is tiny
    check_it_helps()
