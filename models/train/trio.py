"""Trains the language models from scratch on packed rows of generated arithmetic."""

import math
import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from .data import LEARN
from .model import Model
from .tokens import IM_START


@dataclass(frozen=True)
class Recipe:
    """How one model is trained: tokens are all that it reads, repeated ones too."""

    tokens: int
    lr: float
    rows: int = 64  # rows of a batch
    warmup: int = 200
    decay: float = .1

    def scaled(self, by):
        """The recipe for a rehearsal: fewer tokens in smaller batches."""
        return self if by == 1 else replace(self, tokens=int(self.tokens * by), rows=8, warmup=20)


RECIPES = {
    "tiny-s": Recipe(128_000_000, 3e-3),
    "tiny-m": Recipe(216_000_000, 2.5e-3),
    "tiny-l": Recipe(590_000_000, 1.5e-3),
}


class Stream:
    """The packed rows on the device. Batches come in the order of the parts and start anew after the last row."""

    def __init__(self, parts, rows, width, device):
        self.parts, self.rows = parts, rows
        self.store = torch.empty((rows, width), dtype=torch.int32, device=device)
        self.ready = 0

    def batch(self, step, size):
        """Stored ids [size, width]."""
        at = step * size % (self.rows - self.rows % size)
        while self.ready < at + size:
            part = torch.from_numpy(next(self.parts).astype("int32"))
            self.store[self.ready:self.ready + len(part)] = part.to(self.store.device)
            self.ready += len(part)
        return self.store[at:at + size]


def loss_of(model, stored):
    """Mean loss of the next token over the marked positions."""
    ids = stored & (LEARN - 1)
    # A document starts with every other <|im_start|>: the user's turn, then the answer's.
    documents = ((ids == IM_START).cumsum(1) + 1) // 2
    target = torch.where(stored >= LEARN, ids, -100)[:, 1:]
    logits = model(ids.long(), documents)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten().long(), ignore_index=-100)


def schedule(step, steps, recipe):
    """Share of the learning rate: a short rise, then a cosine down to zero."""
    warmup = min(recipe.warmup, steps // 10 + 1)
    if step < warmup:
        return (step + 1) / warmup
    return .5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def compile_layers(model, attempt, log):
    """Compiles the layers, which share one graph. If that fails they run as they are."""
    torch._dynamo.reset()  # what was compiled for another model only takes room
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    try:
        attempt()
    except Exception as e:  # whatever the compiler raises: it only costs speed
        log(f"    torch.compile failed, going on without: {type(e).__name__}: {str(e)[:200]}")
        torch._dynamo.reset()
        for layer in model.model.layers:
            layer._compiled_call_impl = None
    model.zero_grad(set_to_none=True)


def train(name, config, stream, recipe, *, device, seed, deadline, compiled, log=print):
    """Trains until recipe.tokens are read or, with fewer steps from the start, until the deadline (time.monotonic)."""
    torch.manual_seed(seed)
    model = Model(config).to(device)
    cuda = device.type == "cuda"
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": recipe.decay},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(.9, .95), fused=cuda)

    def backward(stored):
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = loss_of(model, stored)
        loss.backward()
        return loss.detach()

    width = stream.store.shape[1]
    began = time.monotonic()
    if compiled:
        compile_layers(model, lambda: backward(stream.batch(0, recipe.rows)), log)
    if cuda:
        torch.cuda.synchronize()
    steps, step = max(1, recipe.tokens // (recipe.rows * width)), 0
    # The pace is measured at some early steps; a look at the clock waits for the device.
    probes, since, at = (40, 160, 640), time.monotonic(), 0
    total = torch.zeros((), device=device)
    while step < steps:
        for g in optimizer.param_groups:
            g["lr"] = recipe.lr * schedule(step, steps, recipe)
        total += backward(stream.batch(step, recipe.rows))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step in probes:
            loss, now = total.item() / (step - at), time.monotonic()
            each = (time.monotonic() - since) / (step - at)
            if deadline:
                wanted = max(1, recipe.tokens // (recipe.rows * width))
                steps = max(step, min(wanted, step + int((deadline - now) / each)))
            log(f"    {name}: step {step} of {steps}, loss {loss:.4f}, {recipe.rows * width / each / 1e6:.2f} M tokens/s")
            since, at, total = now, step, torch.zeros_like(total)
    loss = total.item() / max(1, step - at)
    log(f"    {name}: loss {loss:.4f}, {steps * recipe.rows * width / 1e6:.0f} M tokens in {time.monotonic() - began:.0f} s")
    for layer in model.model.layers:
        layer._compiled_call_impl = None
    return model.eval()
