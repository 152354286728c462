"""Headers of arrays are what NumPy wrote down, and what follows them is the array's numbers."""

import io

import numpy as np
import pytest

from laconic.data.files import read_header


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_header_is_what_numpy_wrote(version, order):
    array = np.array([[1, 2, 3], [4, 5, 6]], np.int16, order=order)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    file.seek(0)
    assert read_header(file) == ((2, 3), order == "F", np.int16)
    assert file.read() == array.tobytes(order)


def test_another_version_and_other_bytes_are_refused():
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros(2), (3, 0))
    with pytest.raises(ValueError, match="version"):
        read_header(io.BytesIO(file.getvalue()))
    with pytest.raises(ValueError, match="magic"):
        read_header(io.BytesIO(b"PK\x03\x04 an archive"))
