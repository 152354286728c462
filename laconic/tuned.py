"""Methods whose numbers were chosen by a sweep on the task they are compared on."""

TUNED: dict[str, tuple[str, ...]] = {
    "digits-mlp": (  # the best of results/sweeps/digits-…
        "slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8",
        "fedadam:gamma=0.1,eta=0.05",
        "adam:alpha=0.05",
        "diloco:gamma=0.01,lr=0.4,momentum=0.8",
    )
}
"""Methods whose numbers were chosen on the task itself by a sweep, as its tables say."""

CHOSEN_BEFORE: dict[str, tuple[str, ...]] = {
    "digits-mlp": ("slowmo:gamma=0.3,beta=0.8", "fedadam:gamma=0.3,eta=0.03", "adam:alpha=0.02")
}
"""The same in older records; nobody wrote down how."""
