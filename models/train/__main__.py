"""Trains the routers of tiny-s and tiny-l, and the three models themselves, in one command (see models/README.md)."""

import argparse
import json
import os
import time
from pathlib import Path

import torch

from . import evaluate, routers, trio
from .data import Encoder, Workers
from .decode import decode
from .evaluate import HEAD, AtLeast, Point, Stitch
from .model import Config, Model
from .rows import collect, join

MODELS = Path(__file__).resolve().parent.parent
WIDTH = 768
# Shares at which policies are measured, and those at which the thresholds of the files are set.
SHARES = (.01, .02, .03, .04, .05, .06, .08, .10, .13)
WANTED = {"r2r": .045, "citer": .075, "co-llm": .08}
FITS = {
    "r2r": dict(epochs=8, lr=1e-3),
    "citer": dict(epochs=20, lr=2e-3),
    "co-llm": dict(epochs=10, lr=1e-2),
}


def arguments():
    p = argparse.ArgumentParser(prog="models/train/run.sh", description=__doc__)
    p.add_argument("--out", type=Path, required=True, help="folder for everything that is made")
    p.add_argument("--models", type=Path, default=MODELS, help="folder of tiny-s, tiny-m and tiny-l")
    p.add_argument("--skip-trio", action="store_true", help="train routers for the models as they are, and nothing else")
    p.add_argument("--skip-routers", action="store_true", help="do not train routers for the models as they are")
    p.add_argument("--budget", type=float, default=440, help="seconds that the run aims at; measuring may take a few more")
    p.add_argument("--device", help="cuda or cpu; cuda where there is one")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-compile", action="store_true", help="never use torch.compile")
    p.add_argument("--texts", type=int, default=100000, help="problems that routers learn from")
    p.add_argument("--on-policy", type=int, default=8000, help="problems answered with the first router, to learn from")
    p.add_argument("--validate", type=int, default=1500, help="further problems, on which thresholds are set")
    p.add_argument("--easy", type=float, default=.2, help="kept share of the positions on which nothing is to be learned")
    p.add_argument("--problems", type=int, default=0, help="measure with the first N of the evaluation set (0: all)")
    p.add_argument("--labels", choices=("large", "text"), default="large",
                   help="what routers take as right: the large model, or the text alone (cheap, for a CPU)")
    p.add_argument("--scale", type=float, default=1.0, help="shrinks the training of the models, for a rehearsal")
    return p.parse_args()


class Run:
    """The state of one run: options, the clock, the log and the results."""

    def __init__(self, options, workers):
        self.o, self.start = options, time.monotonic()
        self.asked = evaluate.problems(MODELS / "eval" / "problems.jsonl")[:options.problems or None]
        # Problems that are not in the evaluation set: to learn from, to set thresholds on, to answer on policy.
        known = {q for q, _ in self.asked}
        sizes = (options.texts, options.validate, options.on_policy)
        self.learnt, self.held, self.answered = (workers.texts(i + 1, n, known) for i, n in enumerate(sizes))
        self.device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if self.device.type == "cuda":
            # cuDNN plans anew for every length, and decoding has a new one at every step.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.encoder = Encoder(options.models / "tiny-s" / "tokenizer.json")
        self.digits = frozenset(self.encoder.words("0123456789"))
        self.lines, self.results = [], {}
        options.out.mkdir(parents=True, exist_ok=True)

    def log(self, line):
        print(f"[{time.monotonic() - self.start:6.1f}] {line}", flush=True)

    def table(self, line):
        """A line of the table that ends the run; it is written at once, so that a run that is cut short leaves it."""
        self.lines.append(line)
        self.log(line)
        (self.o.out / "table.md").write_text("\n".join(self.lines) + "\n")
        (self.o.out / "results.json").write_text(json.dumps(self.results, indent=2) + "\n")

    def until(self, share):
        """The time (time.monotonic) at which this share of the budget is spent."""
        return self.start + share * self.o.budget


def train_routers(run, small, large, folder, title, until):
    """Trains the three routers of a pair, sets their thresholds and writes and measures them."""
    o = run.o
    teacher = large if o.labels == "large" else None
    see = lambda texts, easy, seed: collect(small, teacher, texts, easy, seed, digits=run.digits,
                                            tokens=65536 if run.device.type == "cuda" else 8192)
    rows = see(run.learnt(), o.easy, 1)
    held = see(run.held(), 1.0, 2)
    wanted = (rows.weight * routers.harmful(rows)).sum() / rows.weight.sum()
    run.log(f"{title}: {len(rows)} rows of {int(rows.weight.sum())} positions, {wanted:.4f} to be routed")
    began = time.monotonic()
    room = max(1.0, until - began)

    def fit(kind, rows, by):
        net = routers.train(kind, small, rows, seed=o.seed, deadline=began + by * room, log=run.log, **FITS[kind])
        score = routers.scores(net, held)
        run.log(f"    {kind}: ranks a row to be routed above one that is not with {separation(score, held):.4f}")
        return net, {s: routers.cut_at(score, held.weight, s) for s in (*SHARES, WANTED[kind])}

    nets = {"r2r": fit("r2r", rows, .3 if teacher and o.on_policy else .6)}
    if teacher and o.on_policy:
        # States that the pair itself comes to, which the text of the generator does not show.
        net, cuts = nets["r2r"]
        prompts = [p for p, _ in run.answered()]
        answers = decode(small, prompts, large, AtLeast(net.score, torch.full((len(prompts),), cuts[.03], device=run.device)))
        own = see(list(zip(prompts, answers.tokens)), o.easy, 3)
        run.log(f"{title}: {len(own)} rows on policy at a share of {answers.share():.4f}")
        nets["r2r"] = fit("r2r", join([rows, own]), .7)
    nets["citer"] = fit("citer", rows, .85)
    nets["co-llm"] = fit("co-llm", rows, 1)
    source = f"models/train, seed {o.seed}, torch {torch.__version__}, {o.texts} texts"
    for kind, (net, cuts) in nets.items():
        routers.save(net, folder / f"tiny-s-{kind}", "tiny-s", cuts[WANTED[kind]], source)
    measure(run, small, large, nets, held, title)


def separation(score, rows):
    """The area under the ROC curve for R2R's label."""
    order = score.argsort()
    positive = (rows.weight * routers.harmful(rows))[order]
    negative = (rows.weight * ~routers.harmful(rows))[order]
    return (positive * negative.cumsum(0)).sum().item() / (positive.sum() * negative.sum()).item()


def measure(run, small, large, nets, held, title):
    """Adds the curves of all policies to the table."""
    spread = evaluate.entropy(held.top, None, None)  # of the 100 largest, which is all but the same
    even = {s: routers.cut_at(spread, held.weight, s) for s in SHARES}
    run.table(f"\n{title}: routed, {len(run.asked)} problems\n\n{HEAD}")
    for kind, (net, cuts) in nets.items():
        ends = sorted(set(cuts.values()))
        curve(run, title, kind, small, large, lambda c, net=net: AtLeast(net.score, c), ends,
              chosen=cuts[WANTED[kind]])
    curve(run, title, "entropy", small, large, lambda c: AtLeast(evaluate.entropy, c), list(even.values()))
    curve(run, title, "r-stitch", small, large, Stitch, [.03, .02, .01, .0075, .005])
    curve(run, title, "oracle", small, large, lambda c: evaluate.oracle, [0.0])


def curve(run, title, kind, small, large, rule, cuts, chosen=None):
    points = []
    for cut, (accuracy, share) in zip(cuts, evaluate.routed(small, large, run.encoder, run.asked, rule, cuts)):
        point = Point(kind, routers.threshold_of(kind, cut), accuracy, share)
        run.table(point.row() + (" ← file" if cut == chosen else ""))
        points.append(point)
    run.results.setdefault(title, {})[kind] = [vars(p) for p in points]
    return points


def alone(run, models, title):
    run.table(f"\n{title}: alone, {len(run.asked)} problems\n\n| model | accuracy |\n|---|---|")
    for name, model in models.items():
        accuracy = evaluate.alone(model, run.encoder, run.asked)
        run.results.setdefault(title, {})[name] = accuracy
        run.table(f"| {name} | {accuracy:.3f} |")


def train_trio(run, stream):
    """Trains the three models, the pair first, and returns them by name as they were saved."""
    made = {}
    # Parts of the time that is left: compiling takes some of each. The pair comes first.
    began = time.monotonic()
    room = max(1.0, run.until(.8) - began)
    ends = {"tiny-s": .2, "tiny-l": .78, "tiny-m": 1.0}
    for name, end in ends.items():
        recipe = trio.RECIPES[name].scaled(run.o.scale)
        run.log(f"{name}: up to {recipe.tokens / 1e6:.0f} M tokens")
        config = Config.load(run.o.models / name / "config.json")
        made[name] = trio.train(name, config, stream, recipe, device=run.device, seed=run.o.seed,
                                deadline=began + end * room, compiled=not run.o.no_compile, log=run.log)
        made[name].save(run.o.out / name, run.o.models / name)
        made[name] = Model.load(run.o.out / name, run.device)
    return made


def main():
    options = arguments()
    # Before the accelerator is touched: the processes are forked.
    workers = Workers(options.models / "tiny-s" / "tokenizer.json", options.seed, max(1, len(os.sched_getaffinity(0)) - 1))
    run = Run(options, workers)
    # Less than half of what the large model reads, so that it sees every row more than once.
    rows = max(256, int(options.scale * 240_000_000) // WIDTH)
    packed = None if options.skip_trio else workers.packed(rows, WIDTH)
    run.log(f"torch {torch.__version__}, {run.device}, budget {options.budget:.0f} s")
    try:
        shipped = {n: Model.load(options.models / n, run.device) for n in ("tiny-s", "tiny-l")}
        if not options.skip_routers:
            train_routers(run, shipped["tiny-s"], shipped["tiny-l"], options.out / "routers", "models as they are",
                          run.until(.6 if options.skip_trio else .25))
        if packed:
            made = train_trio(run, trio.Stream(packed, rows, WIDTH, run.device))
            alone(run, made, "models made here")
            train_routers(run, made["tiny-s"], made["tiny-l"], options.out / "routers-made", "models made here",
                          run.until(.9))
        alone(run, shipped, "models as they are")
    finally:
        workers.close()
    run.log(f"done; everything is in {options.out}")


if __name__ == "__main__":
    main()
