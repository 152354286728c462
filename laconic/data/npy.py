"""The header of an array in NumPy's own format (.npy), read with NumPy alone."""

from typing import IO, NamedTuple

import numpy as np

READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Header(NamedTuple):
    """What an array is, in the order in which NumPy writes it down."""

    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype


def read_header(stream: IO[bytes]) -> Header:
    """The header, after which the stream stands at the array's numbers; ValueError if there is
    none."""
    version = np.lib.format.read_magic(stream)
    if version not in READERS:  # later ones are for field names outside Latin-1
        raise ValueError(f"version {version} of the format is not for arrays of plain numbers")
    return Header(*READERS[version](stream))
