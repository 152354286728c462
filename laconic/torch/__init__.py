"""PyTorch: a published learned optimizer as a `torch.optim.Optimizer`. It never imports JAX."""

from laconic.torch.outer import LearnedOuter

__all__ = ["LearnedOuter"]
