"""What the GPU can do."""

import jax


def has_units() -> bool:
    """Whether the GPU is of NVIDIA's and multiplies bfloat16 matrices: compute capability 8.0 or
    more."""
    major = str(getattr(jax.devices()[0], "compute_capability", "")).split(".")[0]
    return major.isdigit() and int(major) >= 8
