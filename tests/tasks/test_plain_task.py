import jax.numpy as jnp
import numpy as np
import pytest

from laconic.data.feed import Resident
from laconic.errors import LaconicError
from laconic.tasks.base import plain_task

X = np.zeros((6, 2), np.float32)
Y = np.zeros(6, np.int32)


def made(data, **more):
    loss = lambda params, batch: jnp.sum(params["w"] * batch["x"])
    return plain_task("mine", lambda key: {"w": jnp.zeros(2)}, loss, data, **more)


def test_arrays_of_one_length_are_taken():
    assert made({"x": X, "y": Y}, test={"x": X[:2], "y": Y[:2]}).feed.size("test") == 2
    assert made(X).feed.size() == 6


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"x": X, "y": Y[:5]}, r"\['x'\] has 6, \['y'\] has 5 rows"),
        (Resident({"train": {"x": X, "y": Y[:5]}}), "differ in their number of examples"),
        ({"x": [[0.0, 1.0]], "y": Y}, "is no array of numbers but 0.0"),
        ({"x": np.array(["a", "b"])}, "is no array of numbers"),
        (None, "there are no arrays"),
        ({}, "there are no arrays"),
        ({"x": X[:0]}, r"shape \(0, 2\), which holds no example"),
        ({"x": jnp.float32(1.0)}, r"shape \(\), which holds no example"),
    ],
)
def test_data_that_would_train_on_wrong_rows_is_refused(data, says):
    with pytest.raises(LaconicError, match=f"^mine, train data: .*{says}"):
        made(data)


def test_test_data_is_checked_too():
    with pytest.raises(LaconicError, match=r"^mine, test data: .*differ"):
        made({"x": X, "y": Y}, test={"x": X, "y": Y[:1]})


def test_a_feed_holds_its_own_test_data():
    with pytest.raises(LaconicError, match="put the test data into it"):
        made(Resident({"train": X}), test=X)
