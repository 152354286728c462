"""Telling that a device's memory was too small for what was asked of it."""

SIGN = "RESOURCE_EXHAUSTED"  # what XLA's message begins with


def out_of_memory(error: Exception) -> bool:
    """Whether that is what went wrong."""
    return SIGN in str(error)


def fewer(at_once: int) -> int:
    """About half as many at a time; 0 if there was only one."""
    return 0 if at_once == 1 else -(-at_once // 2)
