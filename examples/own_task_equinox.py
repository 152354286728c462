"""A task of your own from an Equinox module: classify handwritten digits.

python examples/own_task_equinox.py
"""

import equinox as eqx
import jax

import laconic
from laconic.data.images import load_digits
from laconic.tasks.classifier import classifier_task


# task begins
class Net(eqx.Module):
    """Any module that maps a batch of images [B, 8, 8, 1] in 0…1 to logits [B, 10]."""

    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.mlp = eqx.nn.MLP(64, 10, width_size=64, depth=1, key=key)

    def __call__(self, x):
        """Equinox modules take one example, so map over the batch."""
        return jax.vmap(self.mlp)(x.reshape(x.shape[0], -1))


task = classifier_task("digits-net", Net, load_digits())
# task ends

if __name__ == "__main__":
    config = laconic.CompareConfig(optimizers=("local-sgd", "diloco"), rounds=60, seeds=2)
    folder, records = laconic.compare(config, task)
    for row in records[-1]["rows"]:
        print(
            f"{row['label']:12} train loss {row['final_train']:.4f}, test accuracy "
            f"{row['test_accuracy']:.1%}"
        )
    print(f"report: {folder / 'report.html'}")
