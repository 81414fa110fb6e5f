"""The three learned routers: their networks, labels, fits and files.

Tensors have the names of the published checkpoints. A score says how much the
large model is needed: a token is routed if its score is at least the cut. For
CITER, whose output is the confidence that the small model suffices, the score is
one minus that.
"""

import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from .rows import TOP

# What a token of the large model costs in Co-LLM's likelihood, nats. Where both models are
# nearly sure the large one is a little surer, so that without a price the head learns to defer always.
PRICE = .1


@torch.no_grad()
def absorb(linear, columns, x):
    """Changes a fresh layer as if these of its inputs had mean 0 and variance 1 like those of x."""
    mean, std = x.mean(0), x.std(0, correction=0) + 1e-3
    linear.weight[:, columns] /= std
    linear.bias -= linear.weight[:, columns] @ mean


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(.1),
                                 nn.Linear(4 * width, width), nn.Dropout(.1))

    def forward(self, v):
        return v + self.mlp(self.layer_norm(v))


class Backbone(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.input_projection = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.output_layer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, v):
        v = self.input_projection(v)
        for block in self.blocks:
            v = block(v)
        return self.output_layer(v)[:, 0]


class R2R(nn.Module):
    """HiddenStatesTokenLMHeadLogitsClassifier: logits, hidden vector and candidate of the small model."""

    kind = "r2r"

    def __init__(self, embedding, width=256, blocks=2):
        super().__init__()
        size = embedding.shape[1]
        self.embedding = embedding
        self.logits_projection = nn.Linear(TOP, size)
        self.combined_projection = nn.Linear(3 * size, width)
        self.backbone = Backbone(width, blocks)

    def forward(self, top, hidden, candidate):
        u = torch.cat((hidden, self.embedding[candidate], self.logits_projection(top)), -1)
        return self.backbone(self.combined_projection(u))

    def standardize(self, top, hidden, candidate):
        size = hidden.shape[1]
        absorb(self.logits_projection, slice(None), top)
        absorb(self.combined_projection, slice(0, size), hidden)
        absorb(self.combined_projection, slice(size, 2 * size), self.embedding[candidate])

    def score(self, z, hidden, candidate):
        return self(z.topk(TOP, -1).values, hidden, candidate).sigmoid()


class CITER(nn.Module):
    kind = "citer"

    def __init__(self, size):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.BatchNorm1d(2 * size), nn.ReLU(), nn.Dropout(.1),
                                 nn.Linear(2 * size, size), nn.Dropout(.1))
        self.linear = nn.Linear(size, 1)

    def forward(self, hidden):
        """The logit of the confidence that the small model suffices."""
        return self.linear(self.mlp(hidden))[:, 0]

    def score(self, z, hidden, candidate):
        return (-self(hidden)).sigmoid()


class CoLLM(nn.Module):
    kind = "co-llm"

    def __init__(self, size):
        super().__init__()
        self.defer = nn.Linear(size, 1, bias=False)

    def forward(self, hidden):
        return self.defer(hidden)[:, 0]

    def score(self, z, hidden, candidate):
        return self(hidden).sigmoid()


def r2r_loss(net, rows, positive):
    wanted = rows.harm.float()
    out = net(rows.top, rows.hidden, rows.candidate)
    return F.binary_cross_entropy_with_logits(out, wanted, rows.weight * torch.where(wanted > 0, positive, 1.0))


def citer_loss(net, rows, positive):
    """Rows without label (see suffices) are gone already; here a positive is a row that the small model gets wrong."""
    right = rows.small_right.float()
    out = net(rows.hidden)
    return F.binary_cross_entropy_with_logits(out, right, rows.weight * torch.where(right > 0, 1.0, positive))


def co_llm_loss(net, rows, positive):
    """The marginal likelihood of the text, with the writer of each token hidden; both models are fixed."""
    d = net(rows.hidden)
    log_p = torch.logaddexp(F.logsigmoid(-d) + rows.small_log_p, F.logsigmoid(d) + rows.large_log_p - PRICE)
    return -(rows.weight * log_p).mean()


def labelled(rows):
    """CITER's rows: one of the models is right. Where the large one hesitates, the text decides by chance."""
    kept = rows.pick(((rows.small_right | rows.large_right) & (rows.sure > .9)).nonzero()[:, 0])
    return kept if len(kept) else rows


def fit(net, loss, rows, positive, *, epochs, lr, seed, deadline=None, log=print):
    """Trains net in place, for these epochs or until the deadline (a time.monotonic) comes.

    The learning rate falls as a cosine over the larger share of both, so that it ends at zero whatever the speed.
    """
    device = rows.candidate.device
    cuda = device.type == "cuda"
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=5e-4, fused=cuda)
    batch = max(2, min(len(rows), max(512, min(4096, len(rows) // 500))))
    per_epoch = len(rows) // batch
    steps, step, start, progress = epochs * per_epoch, 0, time.monotonic(), 0.0
    net.train()
    while progress < 1:
        order = torch.randperm(len(rows), device=device, generator=generator)
        total = torch.zeros((), device=device)
        for i in range(per_epoch):
            for g in optimizer.param_groups:
                g["lr"] = lr * min(1.0, (step + 1) / 100) * .5 * (1 + math.cos(math.pi * progress))
            value = loss(net, rows.pick(order[i * batch:(i + 1) * batch]), positive)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            total += value.detach()
            step += 1
            if cuda and step % 25 == 0:
                torch.cuda.synchronize()  # so that the clock below is near to what was done
            now = time.monotonic()
            progress = max(step / steps, (now - start) / max(1e-3, deadline - start) if deadline else 0)
            if progress >= 1:
                break
    ended = "" if step >= steps else f" of {steps}, the time was up"
    mean = total.item() / (i + 1)
    log(f"    {net.kind}: {step} steps of {batch} rows{ended}, loss {mean:.4f}, {time.monotonic() - start:.1f} s")
    return net.eval()


def train(kind, small, rows, **options):
    """Fits one router on rows. Returns it and the loss's weight of a positive."""
    size = rows.hidden.shape[1]
    torch.manual_seed(options["seed"])
    if kind == "r2r":
        net = R2R(small.model.embed_tokens.weight.detach().float()).to(rows.hidden.device)
        net.standardize(rows.top, rows.hidden, rows.candidate)
        loss, wanted = r2r_loss, rows.harm
    elif kind == "citer":
        rows = labelled(rows)
        net, loss, wanted = CITER(size).to(rows.hidden.device), citer_loss, ~rows.small_right
        absorb(net.mlp[0], slice(None), rows.hidden)
    else:
        net, loss, wanted = CoLLM(size).to(rows.hidden.device), co_llm_loss, ~rows.small_right
    # The classes are balanced half way, on a log scale: all the way costs precision where few are routed.
    positive = (rows.weight[~wanted].sum() / rows.weight[wanted].sum()).sqrt()
    return fit(net, loss, rows, positive, **options)


@torch.inference_mode()
def scores(net, rows, batch=1 << 16):
    if net.kind == "r2r":
        one = lambda r: net(r.top, r.hidden, r.candidate).sigmoid()
    else:
        one = lambda r: net.score(None, r.hidden, None)
    return torch.cat([one(rows.pick(slice(i, i + batch))) for i in range(0, len(rows), batch)])


def cut_at(score, weight, share):
    """The cut that routes this share of the weight."""
    order = score.argsort(descending=True)
    reached = weight[order].double().cumsum(0)
    at = torch.searchsorted(reached, share * reached[-1])
    return score[order][at.clamp_max(len(order) - 1)].item()


def threshold_of(kind, cut):
    return 1 - cut if kind == "citer" else cut


def save(net, file, model, cut, source):
    """Writes file.safetensors and file.json."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().to("cpu", torch.float32).contiguous() for k, v in net.state_dict().items()
               if not k.endswith("num_batches_tracked")}
    if net.kind == "co-llm":
        tensors["defer.weight"] = tensors["defer.weight"][0].contiguous()
    save_file(tensors, file.with_name(file.name + ".safetensors"))
    hidden = net.defer.in_features if net.kind == "co-llm" else (
        net.linear.in_features if net.kind == "citer" else net.logits_projection.out_features)
    sidecar = {"format": 1, "kind": net.kind, "model": model, "hidden_size": hidden, "logits_size": TOP,
               "normalize_input": False, "threshold": float(f"{threshold_of(net.kind, cut):.6g}"), "source": source}
    file.with_name(file.name + ".json").write_text(json.dumps(sidecar, indent=2) + "\n")
