"""What the four training loops `loop_*.py` share: data, numbers, and the optimizer to load."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

OPTIMIZER = "lopt-r"  # a name of `laconic zoo list`, or a .safetensors file
K, H, B = 8, 4, 16  # workers, local steps a round, examples a step
ROUNDS = 100

images, labels = load_digits(return_X_y=True)  # 1797 handwritten digits of 8×8 pixels
x, test_x, y, test_y = train_test_split(
    (images / 16).astype("float32"), labels, test_size=0.2, random_state=0
)
