"""DiLoCo's outer step against its twin and PyTorch's convention, which optax shares."""

from laconic.outer.nesterov import nesterov
from tests import reference as ref
from tests.outer.trees import assert_rounds_like


def test_like_the_twin():
    assert_rounds_like(
        nesterov(learning_rate=0.3, momentum=0.8), ref.Nesterov(lr=0.3, beta=0.8), 1e-6
    )


def test_the_defaults_are_those_of_diloco():
    assert_rounds_like(nesterov(), ref.Nesterov(lr=0.7, beta=0.9), 1e-6)
