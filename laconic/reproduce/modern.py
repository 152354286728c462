"""Beyond the paper: ways to send less, each under Nesterov's server and under the learned one.

Panels whose names begin with `small` are made for a CPU, the others for a GPU. A panel is one
comparison, so the model in fragments is a panel of its own, in the same setting.
"""

from dataclasses import replace

from laconic.reproduce.experiment import Experiment
from laconic.reproduce.panel import Panel
from laconic.runs.compare import CompareConfig

GENERAL = "lopt-r"  # the published optimizer that is meant to need no tuning
MESSAGES = {  # what is sent, under both servers
    "dense": "dense",
    "int8": "int8",
    "int4": "int4",
    "top-k 1 % with error feedback": "topk:0.01+ef",
    "SparseLoCo's codec": "sparseloco",
}
GAMMA = 0.002  # of all workers, AdamW's and Muon's
SERVERS = {"Nesterov": "diloco:lr=0.7,momentum=0.9", "learned": f"{GENERAL}:local=adamw"}
MUON = {"Nesterov": "muloco:lr=1,momentum=0.9", "learned": f"{GENERAL}:local=muon"}


def _row(server: str, label: str, compress: str = "dense") -> str:
    return f"{server},gamma={GAMMA},compress={compress},label={label}"


WHOLE = (
    _row("diloco:lr=1,momentum=0", "averaging + dense"),
    f"sparseloco:gamma={GAMMA},label=SparseLoCo",
    *(
        _row(server, f"{title} + {words}", compress)
        for words, compress in MESSAGES.items()
        for title, server in SERVERS.items()
    ),
    *(_row(server, f"{title} + Muon workers") for title, server in MUON.items()),
)
STREAMED = tuple(_row(server, f"{title} + streaming") for title, server in SERVERS.items())


def _panels(name: str, title: str, config: CompareConfig) -> tuple[Panel, Panel]:
    """The model sent whole, and in three fragments, each while ten local steps go on."""
    metrics = ("final_train", "test_loss", "sent_megabytes", *LINKS, "diverged")
    whole = Panel(
        name,
        title,
        replace(config, optimizers=WHOLE),
        metrics=metrics,
        shown=("train", "bits"),
    )
    streamed = replace(config, optimizers=STREAMED, fragments=3, delay=10, mix=0.5)
    return whole, replace(
        whole, name=f"{name}-streaming", title=f"{title}, streaming", config=streamed
    )


LINKS = ("server_100mbit", "server_1gbit", "peers_100mbit", "peers_1gbit")
_SETTING = CompareConfig(workers=8, local_steps=30, seeds=3, on_nan="continue")
_SMALL = replace(
    _SETTING,
    task="lm-bytes:file=text/tinyshakespeare.txt,context=16,hidden=32,heads=2,layers=1",
    batch=4,
    rounds=20,
    evaluate_every=10,
    step_time="1ms",
)
_LARGE = replace(
    _SETTING,
    task="lm-decoder:file=text/wikitext2_train.txt,vocab=2048,hidden=256,heads=8,layers=4,"
    "compute=bf16",
    batch=8,
    rounds=60,
    evaluate_every=10,
    step_time="20ms",
)

TABLE_MODERN = Experiment(
    "table-modern",
    "Ways to send less, under Nesterov and under a learned server",
    "loss after equal rounds, bits, and time over two links, of a decoder with K = 8 and H = 30",
    (
        *_panels("small", "decoder of 30 thousand weights", _SMALL),
        *_panels("decoder", "decoder of 4.2 million weights", _LARGE),
    ),
    leaves_out=(
        "This is not in the paper. Panels whose names begin with small are for a CPU: a byte model "
        "of Shakespeare's plays, 20 rounds. The others are for a GPU: 60 rounds on WikiText-2.",
        f"Nothing is tuned: all workers have the rate {GAMMA}, Nesterov 0.7 and 0.9 (over Muon 1 "
        f"and 0.9) as published, SparseLoCo and averaging 1 and no momentum. The learned server is "
        f"{GENERAL}.",
        "Times are priced, not measured: a local step is taken to last 1 ms in the small panels "
        "and 20 ms in the others. Through a server a message goes up and the whole model comes "
        "down; between peers dense messages go round a ring, all others to everyone. In fragments "
        "an exchange costs what is left of it after the 10 local steps that go on meanwhile.",
    ),
)
