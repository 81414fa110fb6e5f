"""Trains the language models from scratch on packed rows of generated arithmetic.

Each model has a process of its own (see start): all three are so small that one
alone leaves the accelerator idle while Python launches its kernels, and compiling
then takes their time but once. They read the same rows in the same order. How long
the small model reads is searched for (see search).
"""

import json
import math
import os
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F

from .data import LEARN
from .model import Config, Model, same_document
from .search import Goal, Validation, search
from .tokens import IM_START


@dataclass(frozen=True)
class Recipe:
    """How one model is trained: tokens are all that it reads, repeated ones too; with a goal, the most that a try reads."""

    tokens: int
    lr: float
    rows: int = 64  # rows of a batch
    warmup: int = 200
    decay: float = .1
    goal: Goal | None = None

    def scaled(self, by):
        """The recipe for a rehearsal: fewer tokens in smaller batches."""
        if by == 1:
            return self
        return replace(self, tokens=int(self.tokens * by), rows=8, warmup=20, goal=self.goal and self.goal.scaled(by))


RECIPES = {
    # Weak on purpose, so that routing has something to do; what accuracy comes of how many tokens is not known beforehand.
    "tiny-s": Recipe(128_000_000, 3e-3, goal=Goal(accuracy=.42, within=.03, first=36_000_000)),
    "tiny-m": Recipe(216_000_000, 2.5e-3),
    "tiny-l": Recipe(590_000_000, 1.5e-3),
}


class Stream:
    """The packed rows on the device. Batches come in the order of the rows and start anew after the last."""

    def __init__(self, packed, device):
        """packed is a data.Packed, which other processes still fill."""
        self.packed = packed
        self.store = torch.empty((packed.rows, packed.width), dtype=torch.int32, device=device)
        self.ready = 0

    def batch(self, step, size, deadline=None):
        """Stored ids [size, width], or None if the deadline passed before they were drawn."""
        at = step * size % (self.packed.rows - self.packed.rows % size)
        while self.ready < at + size:
            part = self.packed.read(self.ready)
            if part is not None:
                self.store[self.ready:self.ready + len(part)] = torch.from_numpy(part.astype("int32")).to(self.store.device)
                self.ready += len(part)
            elif deadline and time.monotonic() > deadline:
                return None
            else:
                time.sleep(.01)
        return self.store[at:at + size]


def documents_of(ids):
    """Numbers the documents of every row: each starts with every other <|im_start|>, the user's turn."""
    return ((ids == IM_START).cumsum(1) + 1) // 2


def bounds_of(ids):
    """Where documents begin in the rows laid end to end, ascending, then the count of ids, repeated.

    The length depends on the shape of ids alone, as compiled layers want it; every document is longer than 32.
    """
    turn = ids == IM_START
    begins = turn & (turn.cumsum(1) % 2 == 1)
    begins[:, 0] = True
    at = torch.arange(ids.numel(), device=ids.device)
    return torch.where(begins.flatten(), at, ids.numel()).sort().values[:ids.numel() // 32 + 2].int()


def loss_of(model, stored, flash=False):
    """Mean loss of the next token over the marked positions."""
    ids = stored & (LEARN - 1)
    target = torch.where(stored >= LEARN, ids, -100)[:, 1:]
    seen = bounds_of(ids) if flash else same_document(documents_of(ids))
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    logits = model.head(model.hidden(ids.long(), seen, positions))[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten().long(), ignore_index=-100)


def flash_agrees(model, backward, stored, log):
    """Whether attention over documents end to end, which is far cheaper than a mask, gives the mask's gradients."""
    try:
        found = []
        for flash in (False, True):
            loss = backward(stored, flash).item()
            found.append((loss, torch.cat([p.grad.flatten() for p in model.parameters()])))
            model.zero_grad(set_to_none=True)
        (a, x), (b, y) = found
        like = F.cosine_similarity(x, y, dim=0).item()
        log(f"attention without a mask: loss {b:.5f} for {a:.5f}, gradients alike to {like:.5f}")
        return abs(a - b) < .01 * a and like > .99
    except Exception as e:  # whatever an older or newer PyTorch says: it only costs speed
        log(f"attention without a mask failed, going on with one: {type(e).__name__}: {str(e)[:200]}")
        model.zero_grad(set_to_none=True)
        return False


def compile_layers(model, attempt, log):
    """Compiles the layers, which share one graph. If that fails they run as they are."""
    began = time.monotonic()
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    try:
        attempt()
        log(f"layers compiled in {time.monotonic() - began:.1f} s")
    except Exception as e:  # whatever the compiler raises: it only costs speed
        log(f"torch.compile failed, going on without: {type(e).__name__}: {str(e)[:200]}")
        torch._dynamo.reset()
        for layer in model.model.layers:
            layer._compiled_call_impl = None
    model.zero_grad(set_to_none=True)


def rate(step, progress, recipe):
    """Share of the learning rate: a short rise, and a cosine down to zero over the progress from 0 to 1."""
    return min(1.0, (step + 1) / recipe.warmup) * .5 * (1 + math.cos(math.pi * progress))


class Trainer:
    """Trains a model, as often as asked: attention is checked and layers are compiled once."""

    def __init__(self, config, stream, recipe, *, device, seed, deadline, compiled, log=print):
        """deadline (time.monotonic) is for the first rows, which other processes may still draw."""
        self.stream, self.recipe, self.seed, self.device, self.log = stream, recipe, seed, device, log
        self.cuda = device.type == "cuda"
        self.each = recipe.rows * stream.packed.width
        self.model = self._fresh(config)
        first = stream.batch(0, recipe.rows, deadline)
        if first is None:
            raise RuntimeError("no rows were drawn in time")
        self.flash = self.cuda and flash_agrees(self.model, self._backward, first[:8], log)
        if compiled:
            compile_layers(self.model, lambda: self._backward(first, self.flash).item(), log)

    def _fresh(self, config):
        torch.manual_seed(self.seed)
        return Model(config).to(self.device)

    def _backward(self, stored, flash):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
            loss = loss_of(self.model, stored, flash)
        loss.backward()
        return loss.detach()

    def _optimizer(self):
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() == 1]
        groups = [{"params": decayed, "weight_decay": self.recipe.decay}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.recipe.lr, betas=(.9, .95), fused=self.cuda)

    def fit(self, tokens, deadline):
        """Trains from the beginning until tokens are read or the deadline (time.monotonic) comes.

        Progress is the larger of both shares, so that the learning rate has come down to
        zero at the end whatever the speed, and however it changes on the way. Returns a
        model of its own, with the weights as a file has them, and how many tokens it read.
        """
        self.model.load_state_dict(self._fresh(self.model.config).state_dict())
        optimizer = self._optimizer()
        steps, step, progress = max(1, tokens // self.each), 0, 0.0
        began = since = time.monotonic()
        at, total = 0, torch.zeros((), device=self.device)
        while progress < 1:
            batch = self.stream.batch(step, self.recipe.rows, deadline)
            if batch is None:
                self.log("the deadline came before further rows")
                break
            for g in optimizer.param_groups:
                g["lr"] = self.recipe.lr * rate(step, progress, self.recipe)
            total += self._backward(batch, self.flash)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 25 == 0 and self.cuda:
                torch.cuda.synchronize()  # so that the clock below is near to what was done
            now = time.monotonic()
            progress = min(1.0, max(step / steps, (now - began) / max(1e-3, deadline - began)))
            if step == 40 or now - since > 15 or progress >= 1:
                loss, now = total.item() / (step - at), time.monotonic()
                self.log(f"step {step}, {step * self.each / 1e6:.0f} M tokens, {progress:.0%}, loss {loss:.4f}, "
                         f"{(step - at) * self.each / (now - since) / 1e6:.2f} M tokens/s")
                since, at, total = now, step, torch.zeros_like(total)
        ended = "all tokens read" if step >= steps else "the time was up"
        self.log(f"{ended}: {step * self.each / 1e6:.0f} M tokens in {time.monotonic() - began:.0f} s")
        made = Model(self.model.config).to(self.device)
        made.load_state_dict({k: v.bfloat16().float() for k, v in self.model.state_dict().items()})
        return made.eval(), step * self.each


@dataclass(frozen=True)
class Job:
    """What a process needs to train one model."""

    name: str
    like: str  # folder with the configuration and the tokenizer
    out: str
    packed: object  # data.Packed
    recipe: Recipe
    device: str
    seed: int
    start: float  # of the run, for the log
    deadline: float
    compiled: bool
    validation: Validation


def work(job):
    """Trains one model and saves it; runs in a process of its own."""
    log = lambda line: print(f"[{time.monotonic() - job.start:6.1f}]     {job.name}: {line}", flush=True)
    try:
        torch.set_num_threads(1)
        # cuDNN plans anew for every length, and decoding has a new one at every step.
        torch.backends.cuda.enable_cudnn_sdp(False)
        device, recipe = torch.device(job.device), job.recipe
        log(f"up to {recipe.tokens / 1e6:.0f} M tokens until {job.deadline - job.start:.0f} s")
        trainer = Trainer(Config.load(os.path.join(job.like, "config.json")), Stream(job.packed, device), recipe,
                          device=device, seed=job.seed, deadline=job.deadline, compiled=job.compiled, log=log)
        if recipe.goal:
            model, tries = search(trainer.fit, job.validation.accuracy(job.like), recipe.goal, recipe.tokens, job.deadline, log)
            Path(job.out + ".tries.json").write_text(json.dumps([vars(t) for t in tries], indent=2) + "\n")
        else:
            model, _ = trainer.fit(recipe.tokens, job.deadline)
        model.save(job.out, job.like)
    except BaseException:
        log("failed:\n" + traceback.format_exc())
        raise SystemExit(1)


def start(jobs):
    """Starts one process for each job and returns them by the models' names."""
    # Spawned, as a forked process cannot use an accelerator that its parent has touched.
    context = get_context("spawn")
    made = {job.name: context.Process(target=work, args=(job,), name=job.name, daemon=True) for job in jobs}
    for process in made.values():
        process.start()
    return made
