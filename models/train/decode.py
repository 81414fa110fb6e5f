"""Greedy decoding of a batch with one model, or with two and a rule between them.

It shares no code with the server, so that it can serve as a reference for it. It
is plain rather than cheap: the large model reads every token, also those that the
small one decides alone.
"""

from dataclasses import dataclass, field

import torch

from .model import Cache
from .tokens import IM_END, PAD, VOCAB

MAX_TOKENS = 600


@dataclass
class Texts:
    """Answers, in the order of the prompts, and which of their tokens came from the large model."""

    tokens: list = field(default_factory=list)
    large: list = field(default_factory=list)

    def share(self):
        return sum(map(sum, self.large)) / max(1, sum(map(len, self.large)))


def left_padded(prompts, device):
    """Rows [B, T] that end together, and how much padding stands before each."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts], device=device)
    return ids, torch.tensor([width - len(p) for p in prompts], device=device)


@torch.inference_mode()
def decode(entry, prompts, large=None, rule=None, limit=MAX_TOKENS, chunk=4096, ends=None):
    """Answers prompts (lists of ids) until the end token or limit tokens.

    ends(y, rows), if any, says which of the tokens y that rows (indices of the prompts) wrote end them too.

    rule(z, h, y, rows) says which of the candidates y of the entry model are
    dropped for the large model's token: z are the raw logits over the real ids, h
    the vectors after the final norm and rows the indices of the prompts. A rule
    with `returns` set is asked about the large model too (see Stitch).
    """
    out = Texts([None] * len(prompts), [None] * len(prompts))
    # Rows of like length stand together, so that little is padded.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for at in range(0, len(order), chunk):
        part = order[at:at + chunk]
        _decode(entry, large, rule, [prompts[i] for i in part], torch.tensor(part), limit, ends, out)
    return out


def _decode(entry, large, rule, prompts, index, limit, ends, out):
    device = entry.inverse.device
    ids, pad = left_padded(prompts, device)
    rows = index.to(device)
    room = ids.shape[1] + limit
    small_cache = Cache(entry, pad, room)
    large_cache = Cache(large, pad, room) if large else None
    n = len(prompts)
    tokens = torch.full((n, limit), PAD, device=device)
    source = torch.zeros((n, limit), dtype=torch.bool, device=device)
    lengths = torch.zeros(n, dtype=torch.long, device=device)
    live = torch.arange(n, device=device)
    done = torch.zeros(n, dtype=torch.bool, device=device)
    feed = ids
    for t in range(limit):
        h = small_cache.step(feed)[:, -1]
        z = entry.head(h)[:, :VOCAB].float()
        y = z.argmax(-1)
        if large:
            zl = large.head(large_cache.step(feed)[:, -1])[:, :VOCAB].float()
            route = rule(z, h.float(), y, rows[live], zl)
            y = torch.where(route, zl.argmax(-1), y)
            source[live, t] = route & ~done
        y = torch.where(done, PAD, y)
        tokens[live, t] = y
        lengths[live] += ~done
        done = done | (y == IM_END)
        if ends:
            done = done | ends(y, rows[live])
        feed = y[:, None]
        # Looking at done waits for the device: do it seldom.
        if t % 16 == 15 or t == limit - 1:
            left = (~done).nonzero()[:, 0]
            if len(left) == 0:
                break
            if len(left) < .8 * len(done):
                small_cache.keep(left)
                if large:
                    large_cache.keep(left)
                live, done, feed = live[left], done[left], feed[left]
    for i, length, row, flags in zip(index.tolist(), lengths.tolist(), tokens.tolist(), source.tolist()):
        out.tokens[i], out.large[i] = row[:length], flags[:length]
