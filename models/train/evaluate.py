"""Accuracy and share of large tokens, measured on problems with a plain decoder."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from .data import answer_of
from .decode import MAX_TOKENS, decode
from .tokens import VOCAB


@dataclass
class Point:
    """One threshold of one policy."""

    policy: str
    threshold: float
    accuracy: float
    share: float

    def row(self):
        return f"| {self.policy} | {self.threshold:.6g} | {self.accuracy:.3f} | {self.share:.4f} |"


HEAD = "| policy | threshold | accuracy | large share |\n|---|---|---|---|"


def problems(file):
    """The evaluation set: pairs of question and answer."""
    lines = [json.loads(line) for line in Path(file).read_text().splitlines() if line]
    return [(p["question"], p["answer"]) for p in lines]


def accuracy(encoder, answers, wanted):
    right = [answer_of(encoder.text(a)) == w for a, w in zip(answers, wanted)]
    return sum(right) / len(right)


def prompted(encoder, asked):
    """Pairs of prompt (ids) and answer."""
    return [(encoder.prompt(q), a) for q, a in asked]


def drawn(encoder, texts):
    """The same of generated texts, which end with their answer."""
    return [(prompt, answer_of(encoder.text(answer))) for prompt, answer in texts]


def alone(model, encoder, asked, limit=MAX_TOKENS):
    """Accuracy of one model on pairs of prompt and answer."""
    texts = decode(model, [p for p, _ in asked], limit=limit)
    return accuracy(encoder, texts.tokens, [a for _, a in asked])


def entropy(z, hidden, candidate):
    """Entropy of the small model's distribution over the entropy of the uniform one."""
    log_p = z.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1) / math.log(VOCAB)


class AtLeast:
    """Routes single tokens whose score reaches the cut of their row."""

    def __init__(self, score, cuts):
        self.score, self.cuts = score, cuts

    def __call__(self, z, hidden, candidate, rows, large_z):
        return self.score(z, hidden, candidate) >= self.cuts[rows]


class Stitch:
    """R-Stitch: the large model goes on until it is sure itself."""

    def __init__(self, cuts):
        self.cuts, self.held = cuts, torch.zeros_like(cuts, dtype=torch.bool)

    def __call__(self, z, hidden, candidate, rows, large_z):
        cut = self.cuts[rows]
        route = self.held[rows] | (entropy(z, None, None) > cut)
        self.held[rows] = route & (entropy(large_z, None, None) > cut)
        return route


def oracle(z, hidden, candidate, rows, large_z):
    """Routes where the arg max differs: the best that one token at a time can do."""
    return large_z.argmax(-1) != candidate


def routed(small, large, encoder, asked, make_rule, cuts, limit=MAX_TOKENS):
    """Accuracy and share of every cut. All cuts are decoded together, as rows of one batch."""
    device = small.inverse.device
    prompts = [p for p, _ in asked] * len(cuts)
    each = torch.tensor(cuts, device=device).repeat_interleave(len(asked))
    texts = decode(small, prompts, large, make_rule(each), limit)
    out = []
    for i in range(len(cuts)):
        part = slice(i * len(asked), (i + 1) * len(asked))
        count = sum(map(len, texts.tokens[part]))
        out.append((accuracy(encoder, texts.tokens[part], [a for _, a in asked]),
                    sum(map(sum, texts.large[part])) / count))
    return out


def at_share(points, share):
    """The threshold and the accuracy at a share, on the straight line between the measured points next to it.

    Beyond the points it is the nearest of them.
    """
    points = sorted(points, key=lambda p: p.share)
    below = [p for p in points if p.share <= share] or points[:1]
    above = [p for p in points if p.share > share] or points[-1:]
    a, b = below[-1], above[0]
    by = (share - a.share) / (b.share - a.share) if b.share > a.share else 0.0
    by = min(1.0, max(0.0, by))
    return a.threshold + (b.threshold - a.threshold) * by, a.accuracy + (b.accuracy - a.accuracy) * by
