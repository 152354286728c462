"""Local SGD in plain PyTorch, with averaging, DiLoCo's Nesterov and a learned outer optimizer on
the server.

python examples/torch_outer.py [NAME | FILE.safetensors]     # an optimizer of the mean: lopt-a-…
"""
# pyright: reportMissingImports=false

import sys

import torch
from sklearn.datasets import load_digits

import laconic.torch

NAME = sys.argv[1] if len(sys.argv) > 1 else "lopt-a-digits"
K, H, B, ROUNDS = 8, 4, 16, 50  # workers, local steps, batch, rounds
images, labels = load_digits(return_X_y=True)
X, Y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
cross_entropy = torch.nn.functional.cross_entropy


def local_steps(model, gamma, generator):
    """What one worker does in a round: H steps of SGD on rows of its own."""
    local = torch.optim.SGD(model.parameters(), gamma)
    for _ in range(H):
        rows = torch.randint(len(X), (B,), generator=generator)
        local.zero_grad()
        cross_entropy(model(X[rows]), Y[rows]).backward()
        local.step()


def train(make_outer, gamma):
    """Rounds of local SGD, any torch optimizer on the server → the loss on all data after each."""
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )
    model = torch.nn.Sequential(*layers)
    params, generator = list(model.parameters()), torch.Generator().manual_seed(1)
    outer, losses = make_outer(params), []
    for _ in range(ROUNDS):
        before = [p.detach().clone() for p in params]
        deltas = [torch.zeros_like(p) for p in before]
        for _ in range(K):  # on real machines: at the same time, and an all-reduce
            local_steps(model, gamma, generator)
            with torch.no_grad():
                for p, start, delta in zip(params, before, deltas, strict=True):
                    delta += (start - p) / K
                    p.copy_(start)
        for p, delta in zip(params, deltas, strict=True):
            p.grad = delta  # W_before − W_after: it points uphill, as a gradient does
        outer.step()
        with torch.no_grad():
            losses.append(float(cross_entropy(model(X), Y)))
    return losses


def learned(params):
    return laconic.torch.LearnedOuter(params, NAME)


if __name__ == "__main__":
    gamma = learned([torch.zeros(1)]).card.local["learning_rate"]
    outers = {
        "averaging": lambda params: torch.optim.SGD(params, 1.0),
        "Nesterov": lambda params: torch.optim.SGD(params, 0.7, momentum=0.9, nesterov=True),
        NAME: learned,
    }
    for name, make_outer in outers.items():
        losses = train(make_outer, gamma)
        print(f"{name}: loss {losses[9]:.4f} after 10 rounds, {losses[-1]:.4f} after {ROUNDS}")
