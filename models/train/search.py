"""How many tokens a model has to read until it is as good as wanted, and no better.

The small model of a pair has to leave something to route. Its accuracy rises from
nothing to nearly all within a few doublings of the tokens, at a place that depends
on everything else, so that a count fixed beforehand misses: 128 M tokens gave .41
once and .89 another time. So it is trained several times from the beginning, with
a whole schedule each, and the one nearest to the goal is kept.
"""

import os
import time
from dataclasses import dataclass, replace

from . import evaluate
from .data import Encoder, draw

# Between two counts that are nearer than this the accuracy is a matter of chance.
NEAR = 1.03
# The factor between counts while all that were tried are on one side of the goal.
FACTOR = 1.5
MOST_TRIES = 10


@dataclass(frozen=True)
class Goal:
    accuracy: float
    within: float  # near enough
    first: int     # the tokens of the first try

    def scaled(self, by):
        return replace(self, first=int(self.first * by))


@dataclass(frozen=True)
class Try:
    tokens: int
    accuracy: float


@dataclass(frozen=True)
class Validation:
    """Problems drawn from a seed, none of them known, on which tries are measured."""

    seed: int
    count: int
    known: frozenset  # questions

    def accuracy(self, folder):
        """A function from a model to its accuracy alone; the folder has the tokenizer."""
        tokenizer = os.path.join(folder, "tokenizer.json")
        encoder = Encoder(tokenizer)
        asked = evaluate.drawn(encoder, draw(tokenizer, self.seed, self.count, self.known))
        return lambda model: evaluate.alone(model, encoder, asked)


def following(tries, goal, most):
    """The tokens of the next try, or None if no further one promises more."""
    if not tries:
        return min(goal.first, most)
    above = min((t for t in tries if t.accuracy >= goal.accuracy), key=lambda t: t.tokens, default=None)
    below = max((t for t in tries if not above or t.tokens < above.tokens), key=lambda t: t.tokens, default=None)
    if not above:
        return None if below.tokens * NEAR > most else min(most, int(below.tokens * FACTOR))
    if not below:
        return int(above.tokens / FACTOR)
    if above.tokens < NEAR * below.tokens:
        return None
    # Accuracy over the logarithm of the tokens is taken as a straight line, but no end of it is believed.
    by = (goal.accuracy - below.accuracy) / (above.accuracy - below.accuracy)
    by = min(.75, max(.25, by))
    return int(below.tokens ** (1 - by) * above.tokens ** by)


def search(fit, accuracy, goal, most, deadline, log=print, clock=time.monotonic):
    """Tries counts of tokens, at most `most`, until one is near enough to the goal or the deadline is too near.

    fit(tokens, deadline) returns a model and how many tokens it read. Returns the model nearest to the goal
    and all tries, in their order.
    """
    tries, best, speed, measuring = [], None, 0.0, 0.0
    while len(tries) < MOST_TRIES:
        tokens = following(tries, goal, most)
        if not tokens:
            break
        began = clock()
        if tries and began + tokens * speed + measuring > deadline:
            log(f"no time for a try with {tokens / 1e6:.1f} M tokens")
            break
        model, read = fit(tokens, deadline - max(measuring, .1 * (deadline - began)))
        trained = clock()
        tries.append(Try(read, accuracy(model)))
        speed, measuring = (trained - began) / max(1, read), clock() - trained
        off = abs(tries[-1].accuracy - goal.accuracy)
        log(f"try {len(tries)}: {read / 1e6:.1f} M tokens, {tries[-1].accuracy:.3f} of the validation problems right, "
            f"wanted {goal.accuracy}, measured in {measuring:.1f} s")
        if best is None or off < best[0]:
            best = off, model
        if off <= goal.within:
            break
    return best[1], tries
