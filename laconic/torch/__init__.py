"""PyTorch: a published learned optimizer as a `torch.optim.Optimizer`. JAX is never imported here."""

from laconic.torch.outer import LearnedOuter

__all__ = ["LearnedOuter"]
