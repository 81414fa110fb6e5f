"""What routers learn from: every position of some answers, as both models see it."""

import math
from dataclasses import dataclass, fields

import torch

from .tokens import PAD, VOCAB

TOP = 100
# Differences below this many nats are no harm: the large model itself hesitates. For labels without a judge.
HARM = .15


@dataclass
class Rows:
    """Features and marks of positions; all tensors have N rows."""

    top: torch.Tensor        # the TOP largest raw logits of the small model, descending
    hidden: torch.Tensor     # its vector after the final norm
    candidate: torch.Tensor  # its arg max
    differs: torch.Tensor    # whether the large model's arg max is another one
    gap: torch.Tensor        # KL divergence of the small model's distribution from the large one's, nats
    small_right: torch.Tensor  # whether the candidate is the text's token
    large_right: torch.Tensor
    small_log_p: torch.Tensor  # log-probability of the text's token
    large_log_p: torch.Tensor
    sure: torch.Tensor       # the large model's largest probability
    weight: torch.Tensor     # how many positions a row stands for
    wanted: torch.Tensor     # the large model's arg max
    text: torch.Tensor       # which text it is of
    at: torch.Tensor         # and where in its answer
    harm: torch.Tensor       # R2R's label: whether the large model's token is worth its price

    def pick(self, index):
        return Rows(*(getattr(self, f.name)[index] for f in fields(self)))

    def __len__(self):
        return len(self.candidate)


def join(parts):
    return Rows(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Rows)))


def decided_by_chance(answer, digits):
    """The index of the token after the last number: whether the unit follows is drawn by the generator."""
    return max(i for i, t in enumerate(answer) if t in digits) + 1


@torch.inference_mode()
def collect(small, large, texts, easy=1.0, seed=0, tokens=32768, digits=frozenset()):
    """Reads texts, pairs of prompt and answer (ids), and returns the rows of the answers' positions.

    Positions on which both models agree and that the small one is sure about are
    kept with probability easy and weigh 1/easy. Without a large model the text
    stands for its arg max; at the one token that the generator draws by chance both
    models then count as alike.
    """
    device = small.inverse.device
    generator = torch.Generator(device).manual_seed(seed)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) + len(texts[i][1]))
    parts, batch, chosen = [], [], []
    for n, i in enumerate(order):
        batch.append(texts[i])
        chosen.append(i)
        width = len(batch[-1][0]) + len(batch[-1][1])
        if width * (len(batch) + 1) > tokens or n == len(order) - 1:
            parts.append(_read(small, large, batch, chosen, width, easy, generator, digits))
            batch, chosen = [], []
    return join(parts)


def _read(small, large, batch, chosen, width, easy, generator, digits):
    device = small.inverse.device
    ids = torch.tensor([a + b + [PAD] * (width - len(a) - len(b)) for a, b in batch], device=device)
    learn = torch.zeros(ids.shape, dtype=torch.bool)
    chance = torch.zeros_like(learn)
    for i, (a, b) in enumerate(batch):
        learn[i, len(a) - 1:len(a) + len(b) - 1] = True
        if not large:
            chance[i, len(a) - 1 + decided_by_chance(b, digits)] = True
    learn = learn.to(device)
    gold = ids.roll(-1, 1)[learn]
    row, column = learn.nonzero(as_tuple=True)
    text = torch.tensor(chosen, device=device)[row]
    at = column - torch.tensor([len(a) - 1 for a, _ in batch], device=device)[row]
    one = torch.zeros_like(ids)
    hidden = small.hidden_of(ids, one)[learn].float()
    z = small.head(hidden)[:, :VOCAB].float()
    log_s = z.log_softmax(-1)
    y = z.argmax(-1)
    small_gold = log_s.gather(1, gold[:, None])[:, 0]
    if large:
        zl = large.head(large.hidden_of(ids, one)[learn])[:, :VOCAB].float()
        log_l = zl.log_softmax(-1)
        best, gap = zl.argmax(-1), (log_l.exp() * (log_l - log_s)).sum(-1)
        large_gold, sure = log_l.gather(1, gold[:, None])[:, 0], log_l.amax(-1).exp()
    else:
        drawn = chance.to(device)[learn]
        best, gap = torch.where(drawn, y, gold), -small_gold
        large_gold = torch.where(drawn, small_gold, math.log(.999))
        sure = torch.where(drawn, .5, 1.0)
    plain = (best == y) & (log_s.amax(-1) > -.01)
    keep = ~plain | (torch.rand(len(y), device=device, generator=generator) < easy)
    weight = torch.where(plain, 1 / easy, 1.0)
    rows = Rows(z.topk(TOP, -1).values, hidden, y, best != y, gap, y == gold, best == gold,
                small_gold, large_gold, sure, weight, best, text, at, (best != y) & (gap > HARM))
    return rows.pick(keep.nonzero()[:, 0])
