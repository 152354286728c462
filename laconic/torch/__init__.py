"""PyTorch: a published learned optimizer as a `torch.optim.Optimizer`. It never imports JAX."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError("laconic.torch needs PyTorch: pip install 'laconic[torch]'")

from laconic.torch.local import Muon
from laconic.torch.outer import LearnedOuter

__all__ = ["LearnedOuter", "Muon"]
