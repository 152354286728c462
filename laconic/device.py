"""What the GPU can do."""

import jax


def has_tensor_cores() -> bool:
    """Whether the GPU multiplies bfloat16 matrices: NVIDIA's, of compute capability 8.0 or more."""
    major = str(getattr(jax.devices()[0], "compute_capability", "")).split(".")[0]
    return major.isdigit() and int(major) >= 8
