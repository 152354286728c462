"""The paper's table of times: what LOpt-A and LAgg-A add to a round of local SGD on large models."""

from laconic.bench.overhead import OverheadConfig
from laconic.reproduce import paper
from laconic.reproduce.experiment import Experiment, TimingPanel


def _panel(name: str, title: str, side: int, row: str | None) -> TimingPanel:
    # XLA's own convolution: one worker on large images, where slices would take nine times the
    # memory
    conv = ",conv=xla" if "resnet" in name else ""
    config = OverheadConfig(task=f"noise-{name}:side={side}{conv}", precision="half")
    return TimingPanel(
        f"{name}-{side}",
        f"{title} at {side}×{side}",
        config,
        {} if row is None else paper.TIMES[row],
    )


TABLE_OVERHEAD = Experiment(
    "table-overhead",
    "What the server's step adds to a round (times)",
    "forward and backward, optimizer and whole round of local SGD, LOpt-A and LAgg-A at H = 8, 16, "
    "32 and 64",
    timings=(
        _panel("resnet50", "ResNet-50", 224, "ResNet50"),
        _panel("resnet50", "ResNet-50", 128, None),
        _panel("vit-b", "ViT-B", 224, None),
        _panel("vit-b", "ViT-B", 128, "ViT-Base"),
    ),
    says=(
        "The overhead of our optimizers relative to Local SGD shrinks to zero as the number of "
        "local steps grows: "
        "medians of the last 40 steps over 3 restarts, on 8 A6000 GPUs, ResNet-50 on images of "
        "224×224 and ViT-B of "
        "128×128.",
    ),
    leaves_out=(
        "Both models are timed at both sizes. Images and labels are random, B = 128, and float32 "
        "products run in the "
        "device's default precision (TF32 on NVIDIA GPUs), those of the learned step in float16's, "
        "whose factors are "
        "as long.",
        "One worker is timed on one device, without a network: LAgg-A is handed 8 workers' deltas "
        "that are there "
        "already. Seconds are of this device and not the paper's; what can be compared is the "
        "overhead.",
        "Of the paper's seconds those at H = 16 are over three times those at H = 8, for twice the "
        "local steps.",
    ),
)
