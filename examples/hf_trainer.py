"""Hugging Face's Trainer in several processes that talk only every H steps: each trains a small
Llama on its own part of a text, and a callback takes the learned outer step.

python examples/hf_trainer.py [--folder runs/hf] [--workers 2] [--steps 24]

A run that was stopped goes on from the last checkpoint of all workers when it is started again.
"""
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import argparse
import hashlib
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import ProcessGroupGloo, TCPStore
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging
from workers import HOST, start, windows

import laconic.torch

H, B, CONTEXT, BYTES = 4, 8, 64, 256
EVERY = 2 * H  # steps from checkpoint to checkpoint
PATIENCE = timedelta(minutes=5)


# --8<-- [start:callback]
class OuterStep(TrainerCallback):
    """Every H local steps: the mean over workers of what they changed, and the learned step.

    The workers have a process group of their own. Were it torch.distributed's default one, Trainer
    would take it for data parallelism.
    """

    def __init__(self, group, model, resumed):
        self.group, self.resumed = group, resumed
        self.params = list(model.parameters())
        table = model.get_input_embeddings().weight  # [num, dim]: a row is an input
        others = [p for p in self.params if p is not table]
        groups = [{"params": [table], "layout": "as-is"}, {"params": others}]
        self.outer = laconic.torch.LearnedOuter(groups, "lopt-a-general")

    def on_train_begin(self, args, state, control, **_):
        """Trainer has loaded the weights by now, which checkpoints have from after outer steps."""
        if self.resumed:
            self.outer.load_state_dict(torch.load(self.resumed / "outer.pt", weights_only=True))
        self.before = [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def on_step_end(self, args, state, control, **_):
        if state.global_step % H:
            return
        for p, old in zip(self.params, self.before, strict=True):
            p.grad = old - p
            self.group.allreduce([p.grad]).wait()
            p.grad /= self.group.size()
            p.copy_(old)
        self.outer.step()
        self.outer.zero_grad()
        self.before = [p.clone() for p in self.params]

    def on_save(self, args, state, control, **_):
        """Beside the model, the local optimizer and the random numbers, which Trainer saves."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        torch.save(self.outer.state_dict(), folder / "outer.part")
        os.replace(folder / "outer.part", folder / "outer.pt")  # a checkpoint with it is whole
        if self.group.rank() == 0:
            print(f"step {state.global_step}: saved", flush=True)


# --8<-- [end:callback]


def step_of(path):
    return int(path.name.removeprefix("checkpoint-"))


def newest(folder, workers):
    """The step of the newest checkpoint that all workers have; 0 if there is none."""
    steps = [
        {step_of(path.parent) for path in folder.glob(f"worker-{k}/*/outer.pt")}
        for k in range(workers)
    ]
    return max(set.intersection(*steps), default=0)


def train(group, folder, steps):
    torch.manual_seed(0)  # the same weights everywhere
    config = LlamaConfig(
        vocab_size=BYTES,
        hidden_size=48,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
    )
    model = LlamaForCausalLM(config)
    mine, done = folder / f"worker-{group.rank()}", newest(folder, group.size())
    resumed = mine / f"checkpoint-{done}" if done else None
    for path in mine.glob("checkpoint-*"):
        if step_of(path) > done:  # not all have it, or it is cut off
            shutil.rmtree(path)
    callback = OuterStep(group, model, resumed)
    rows = [
        {"input_ids": row, "labels": row} for row in windows(group.rank(), group.size(), CONTEXT)
    ]
    local = callback.outer.recommended_local(model.parameters())
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(mine),
            max_steps=steps,
            per_device_train_batch_size=B,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,  # the local optimizer clips where it was trained to
            save_steps=EVERY,  # a multiple of H
            save_total_limit=2,  # one worker may be a checkpoint ahead of another
            seed=group.rank(),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        ),
        train_dataset=rows,
        optimizers=(local, None),
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=resumed and str(resumed))
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    with torch.no_grad():
        x = torch.stack([row["labels"] for row in rows[:64]])
        loss = float(model(input_ids=x, labels=x).loss)
    digest = hashlib.sha256(weights).hexdigest()
    print(f"worker {group.rank()}: loss {loss:.4f}, weights {digest}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/hf"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    asked = parser.parse_args()
    if asked.rank is None:
        start(__file__, asked.workers, *sys.argv[1:])
        return
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    store = TCPStore(HOST, asked.port, is_master=False)
    group = ProcessGroupGloo(store, asked.rank, asked.workers, PATIENCE)
    train(group, asked.folder, asked.steps)


if __name__ == "__main__":
    main()
