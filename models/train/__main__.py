"""Trains the routers of tiny-s and tiny-l, and the three models themselves, in one command (see models/README.md)."""

import argparse
import json
import os
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

import torch

from . import evaluate, routers, trio
from .data import Encoder, Workers
from .decode import decode
from .evaluate import HEAD, AtLeast, Point, Stitch
from .judge import MOST, Judge
from .model import Model
from .rows import collect, join
from .search import Validation

MODELS = Path(__file__).resolve().parent.parent
WIDTH = 768
# Tokens that are drawn: less than half of what the large model may read, so that it sees a row more than once.
UNIQUE = 240_000_000
# Parts of the budget after which the models are trained, those that are alone, and the routers of each pair fitted.
TRIO, ONLY, SHIPPED, MADE = .56, .9, .42, .86
# What a run should reach: the model or router, what is measured, whether it should be at most or at least, the bound.
GOALS = (("tiny-s", "accuracy", ">=", .3), ("tiny-s", "accuracy", "<=", .5), ("tiny-m", "accuracy", ">=", .9),
         ("tiny-l", "accuracy", ">=", .99),
         ("r2r", "accuracy", ">=", .98), ("r2r", "share", "<=", .05),
         ("citer", "accuracy", ">=", .97), ("citer", "share", "<=", .08))
# Shares at which policies are measured, and those at which the thresholds of the files are set.
SHARES = (.01, .02, .03, .04, .05, .06, .08, .10, .13)
WANTED = {"r2r": .045, "citer": .075, "co-llm": .08}
FITS = {
    "r2r": dict(epochs=8, lr=1e-3),
    "citer": dict(epochs=20, lr=2e-3),
    "co-llm": dict(epochs=40, lr=3e-2),
}


def arguments():
    p = argparse.ArgumentParser(prog="models/train/run.sh", description=__doc__)
    p.add_argument("--out", type=Path, required=True, help="folder for everything that is made")
    p.add_argument("--models", type=Path, default=MODELS, help="folder of tiny-s, tiny-m and tiny-l")
    p.add_argument("--skip-trio", action="store_true", help="train routers for the models as they are, and nothing else")
    p.add_argument("--only", choices=tuple(trio.RECIPES), help="train and measure this model, and nothing else")
    p.add_argument("--skip-routers", action="store_true", help="do not train routers for the models as they are")
    p.add_argument("--budget", type=float, default=480,
                   help="seconds that the run aims at; what is being measured then is still finished")
    p.add_argument("--device", help="cuda or cpu; cuda where there is one")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-compile", action="store_true", help="never use torch.compile")
    p.add_argument("--texts", type=int, default=60000, help="problems that routers learn from")
    p.add_argument("--on-policy", type=int, default=8000, help="problems answered with the first router, to learn from")
    p.add_argument("--validate", type=int, default=1500, help="further problems, on which thresholds are set")
    p.add_argument("--easy", type=float, default=.2, help="kept share of the positions on which nothing is to be learned")
    p.add_argument("--problems", type=int, default=0, help="measure with the first N of the evaluation set (0: all)")
    p.add_argument("--labels", choices=("large", "text"), default="large",
                   help="what routers take as right: the large model, or the text alone (cheap, for a CPU)")
    p.add_argument("--harm", choices=("judged", "kl", "both"), default="both",
                   help="what R2R should route: tokens after which the large model writes other numbers, "
                        "those where the distributions differ, or which of the two does better")
    p.add_argument("--calibrate", type=int, default=1000,
                   help="validation problems that are answered to set thresholds and choose between fits (0: none)")
    p.add_argument("--scale", type=float, default=1.0, help="shrinks the training of the models, for a rehearsal")
    options = p.parse_args()
    if options.only and options.skip_trio:
        p.error("--only and --skip-trio leave nothing to train")
    return options


class Run:
    """The state of one run: options, the clock, the log and the results."""

    def __init__(self, options, workers):
        self.o, self.start, self.failed = options, time.monotonic(), False
        asked = evaluate.problems(MODELS / "eval" / "problems.jsonl")
        # Problems that are not in the evaluation set: to learn from, to set thresholds on, to answer on policy.
        known = {q for q, _ in asked}
        sizes = (0, 0, 0) if options.only else (options.texts, options.validate, options.on_policy)
        self.learnt, self.held, self.answered = (workers.texts(i + 1, n, known) for i, n in enumerate(sizes))
        self.validation = Validation(workers.first(len(sizes) + 1), max(20, int(1000 * min(1, options.scale))), frozenset(known))
        self.device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if self.device.type == "cuda":
            # cuDNN plans anew for every length, and decoding has a new one at every step.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.encoder = Encoder(options.models / "tiny-s" / "tokenizer.json")
        self.asked = evaluate.prompted(self.encoder, asked[:options.problems or None])
        self.digits = frozenset(self.encoder.words("0123456789"))
        self.lines, self.results, self.reached = [], {}, {}
        options.out.mkdir(parents=True, exist_ok=True)

    def log(self, line):
        print(f"[{time.monotonic() - self.start:6.1f}] {line}", flush=True)

    def table(self, line):
        """A line of the table that ends the run; it is written at once, so that a run that is cut short leaves it."""
        self.lines.append(line)
        self.log(line)
        (self.o.out / "table.md").write_text("\n".join(self.lines) + "\n")
        (self.o.out / "results.json").write_text(json.dumps(self.results, indent=2) + "\n")

    def spent(self, what):
        """Whether the budget is used up, so that this is left out; says so."""
        if time.monotonic() < self.until(1):
            return False
        self.log(f"the budget is spent; left out: {what}")
        return True

    def until(self, share):
        """The time (time.monotonic) at which this share of the budget is spent."""
        return self.start + share * self.o.budget

    def trained_by(self):
        """The time at which the models are to be trained."""
        return self.until(ONLY if self.o.only else TRIO)


def rows_of(run, small, large, texts, easy, seed, harm="kl", trusted=True):
    """The rows of texts by R2R's label; trusted says that the texts are the large model's own (see Judge.label)."""
    cuda = run.device.type == "cuda"
    rows = collect(small, large if run.o.labels == "large" else None, texts, easy, seed, digits=run.digits,
                   tokens=65536 if cuda else 8192)
    share = lambda mark: (rows.weight * mark).sum() / rows.weight.sum()
    found = {"kl": rows}
    if harm != "kl":
        judged = replace(rows)
        found["judged"] = Judge(large, run.encoder).label(judged, texts, trusted, most=MOST if cuda else MOST // 40)
    run.log(f"    {len(rows)} rows of {int(rows.weight.sum())} positions; {share(rows.differs):.4f} differ, to be routed: "
            + ", ".join(f"{share(r.harm):.4f} ({label})" for label, r in found.items()))
    return found if harm == "both" else {harm: found[harm]}


class Fits:
    """Fits the routers of one pair, one after the other, within its time."""

    def __init__(self, run, small, large, held, until):
        self.run, self.small, self.large, self.held = run, small, large, held
        self.began, self.room = time.monotonic(), max(1.0, until - time.monotonic())
        self.asked = evaluate.drawn(run.encoder, run.held()[:run.o.calibrate])

    def fit(self, kind, rows, by, name=None):
        """A net that is done at this part of the time, with its cuts and its accuracy on the validation problems."""
        run, wanted = self.run, WANTED[kind]
        net = routers.train(kind, self.small, rows, seed=run.o.seed, deadline=self.began + by * self.room, log=run.log,
                            **FITS[kind])
        score = routers.scores(net, self.held)
        cuts = {s: routers.cut_at(score, self.held.weight, s) for s in SHARES}
        chosen, reached, text = routers.cut_at(score, self.held.weight, wanted), None, ""
        if self.asked:
            # The pair's own answers route another share than the generator's text.
            ends = sorted({routers.cut_at(score, self.held.weight, f * wanted) for f in (.7, .85, 1, 1.15)})
            found = evaluate.routed(self.small, self.large, run.encoder, self.asked, lambda c: AtLeast(net.score, c), ends)
            chosen, reached = evaluate.at_share([Point(kind, c, a, s) for c, (a, s) in zip(ends, found)], wanted)
            text = f", right on {reached:.3f} of {len(self.asked)} validation problems at a share of {wanted}"
        apart = separation(score, self.held)
        run.log(f"    {name or kind}: ranks a row to be routed above one that is not with {apart:.4f}{text}")
        return net, cuts, chosen, reached


def train_routers(run, small, large, folder, title, until):
    """Trains the three routers of a pair, sets their thresholds and writes and measures them."""
    o = run.o
    run.log(f"{title}: routers")
    labelled = rows_of(run, small, large, run.learnt(), o.easy, 1, o.harm)
    held = rows_of(run, small, large, run.held(), 1.0, 2)["kl"]
    fits = Fits(run, small, large, held, until)
    tried = {}
    for i, (label, rows) in enumerate(labelled.items(), 1):
        tried[label] = fits.fit("r2r", rows, (.4 if o.on_policy else .65) * i / len(labelled), f"r2r, labels {label}")
    label = best_of(tried)
    if o.on_policy and o.labels == "large":
        # States that the pair itself comes to, which the text of the generator does not show.
        net, _, cut, _ = tried[label]
        prompts = [p for p, _ in run.answered()]
        answers = decode(small, prompts, large, AtLeast(net.score, torch.full((len(prompts),), cut, device=run.device)))
        run.log(f"    answered {len(prompts)} on policy at a share of {answers.share():.4f}")
        own = rows_of(run, small, large, list(zip(prompts, answers.tokens)), o.easy, 3, label, trusted=False)[label]
        tried[f"{label}, own answers"] = fits.fit("r2r", join([labelled[label], own]), .65, f"r2r, labels {label}, own answers")
    best = best_of(tried)
    run.table(f"\n{title}: r2r on {len(fits.asked)} validation problems at a share of {WANTED['r2r']}\n\n"
              "| labels | accuracy |\n|---|---|")
    for name, (_, _, _, reached) in tried.items():
        run.table(f"| {name} | {'' if reached is None else f'{reached:.3f}'} |{' ← file' if name == best else ''}")
    made = {"r2r": tried[best]}
    made["citer"] = fits.fit("citer", rows, .85)
    made["co-llm"] = fits.fit("co-llm", rows, 1)
    source = f"models/train, seed {o.seed}, torch {torch.__version__}, {o.texts} texts"
    for kind, (net, _, chosen, _) in made.items():
        routers.save(net, folder / f"tiny-s-{kind}", "tiny-s", chosen, source + (f", labels {best}" if kind == "r2r" else ""))
    measure(run, small, large, made, held, title)


def best_of(tried):
    """The name of the fit that did best on the validation problems; without any, of the last."""
    return max(reversed(tried), key=lambda name: tried[name][3] or 0)


def separation(score, rows):
    """The area under the ROC curve for R2R's label; nan where no row has it, or all."""
    order = score.argsort()
    positive = (rows.weight * rows.harm)[order]
    negative = (rows.weight * ~rows.harm)[order]
    return ((positive * negative.cumsum(0)).sum() / (positive.sum() * negative.sum())).item()


def measure(run, small, large, made, held, title):
    """Adds the curves of all policies to the table."""
    spread = evaluate.entropy(held.top, None, None)  # of the 100 largest, which is all but the same
    even = {s: routers.cut_at(spread, held.weight, s) for s in SHARES}
    run.table(f"\n{title}: routed, {len(run.asked)} problems\n\n{HEAD}")
    for kind, (net, cuts, chosen, _) in made.items():
        if run.spent(f"measuring {kind} of the {title}"):
            continue
        ends = sorted({chosen, *cuts.values()})
        curve(run, title, kind, small, large, lambda c, net=net: AtLeast(net.score, c), ends,
              chosen=chosen)
    for kind, rule, cuts in (("entropy", lambda c: AtLeast(evaluate.entropy, c), list(even.values())),
                             ("r-stitch", Stitch, [.03, .02, .01, .0075, .005]),
                             ("oracle", lambda c: evaluate.oracle, [0.0])):
        if not run.spent(f"measuring {kind} of the {title}"):
            curve(run, title, kind, small, large, rule, cuts)


def curve(run, title, kind, small, large, rule, cuts, chosen=None):
    points = []
    for cut, (accuracy, share) in zip(cuts, evaluate.routed(small, large, run.encoder, run.asked, rule, cuts)):
        point = Point(kind, routers.threshold_of(kind, cut), accuracy, share)
        run.table(point.row() + (" ← file" if cut == chosen else ""))
        points.append(point)
        if cut == chosen:
            run.reached[title, kind, "accuracy"], run.reached[title, kind, "share"] = accuracy, share
    run.results.setdefault(title, {})[kind] = [vars(p) for p in points]


def alone(run, models, title):
    run.table(f"\n{title}: alone, {len(run.asked)} problems\n\n| model | accuracy |\n|---|---|")
    for name, model in models.items():
        accuracy = evaluate.alone(model, run.encoder, run.asked)
        run.results.setdefault(title, {})[name] = run.reached[title, name, "accuracy"] = accuracy
        run.table(f"| {name} | {accuracy:.3f} |")


def recipes(o):
    """The recipes of the models that are to be trained, by name."""
    return {name: recipe.scaled(o.scale) for name, recipe in trio.RECIPES.items() if not o.skip_trio and o.only in (None, name)}


def unique(o):
    """How many rows are drawn for them: no more than are read."""
    most = max((recipe.tokens for recipe in recipes(o).values()), default=0)
    return max(256, min(int(o.scale * UNIQUE), most) // WIDTH + 1)


def start_trio(run, packed):
    """Starts the processes that train the models."""
    o, until = run.o, run.trained_by()
    return trio.start([trio.Job(name, str(o.models / name), str(o.out / name), packed, recipe, str(run.device), o.seed,
                                run.start, until, run.device.type == "cuda" and not o.no_compile, run.validation)
                       for name, recipe in recipes(o).items()])


def wait_trio(run, processes):
    """Waits for the processes and returns the models by name, as they were saved."""
    made = {}
    for name, process in processes.items():
        process.join(max(0, run.trained_by() - time.monotonic()) + 30)
        if process.is_alive():
            run.log(f"{name}: did not end in time and is given up")
            process.terminate()
        elif process.exitcode == 0:
            made[name] = Model.load(run.o.out / name, run.device)
            if trio.RECIPES[name].goal:
                table_of_tries(run, name, json.loads((run.o.out / f"{name}.tries.json").read_text()))
        else:
            run.log(f"{name}: not made, its process ended with {process.exitcode}")
    return made


def table_of_tries(run, name, tries):
    """Adds to the table how good a model was after how many tokens."""
    run.results.setdefault("tries", {})[name] = tries
    run.table(f"\n{name}: accuracy on {run.validation.count} validation problems, wanted {trio.RECIPES[name].goal.accuracy}\n\n"
              "| million tokens | accuracy |\n|---|---|")
    for t in tries:
        run.table(f"| {t['tokens'] / 1e6:.1f} | {t['accuracy']:.3f} |")


def verdict(run):
    """Ends the table with what the run should reach."""
    run.table("\nshould reach\n\n| | | | reached | |\n|---|---|---|---|---|")
    for title in sorted({title for title, _, _ in run.reached}):
        for name, what, order, bound in GOALS:
            got = run.reached.get((title, name, what))
            if got is not None:
                good = got <= bound if order == "<=" else got >= bound
                run.table(f"| {title} | {name} {what} | {order} {bound} | {got:.4f} | {'yes' if good else 'NO'} |")


def attempt(run, part, *arguments):
    """Runs one part; if it fails the others are still worth having."""
    try:
        part(run, *arguments)
    except Exception:
        run.failed = True
        run.log(f"{part.__name__} failed, going on:\n{traceback.format_exc()}")


def parts(run, workers, packed):
    """All parts of a run, while the three models are trained beside them."""
    o = run.o
    processes = start_trio(run, packed) if packed else {}
    if not o.only:
        shipped = {n: Model.load(o.models / n, run.device) for n in trio.RECIPES}
        attempt(run, alone, shipped, "models as they are")
    if not o.skip_routers and not o.only:
        attempt(run, train_routers, shipped["tiny-s"], shipped["tiny-l"], o.out / "routers", "models as they are",
                run.until(MADE if o.skip_trio else SHIPPED))
    if not packed:
        return
    made = wait_trio(run, processes)
    workers.check()
    attempt(run, alone, made, "models made here")
    if "tiny-s" in made and "tiny-l" in made:
        attempt(run, train_routers, made["tiny-s"], made["tiny-l"], o.out / "routers-made", "models made here", run.until(MADE))
    run.failed |= len(made) < len(processes)


def main():
    options = arguments()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # for each of three processes
    # Before the accelerator is touched: the processes are forked. Some cores are for the models' own.
    cores = len(os.sched_getaffinity(0))
    workers = Workers(options.models / "tiny-s" / "tokenizer.json", options.seed, max(1, cores - (1 if options.skip_trio else 5)))
    with tempfile.TemporaryDirectory(prefix="packed-") as folder:
        try:
            run = Run(options, workers)
            packed = workers.packed(folder, unique(options), WIDTH) if recipes(options) else None
            run.log(f"torch {torch.__version__}, {run.device}, {cores} cores, budget {options.budget:.0f} s")
            parts(run, workers, packed)
            verdict(run)
        finally:
            workers.close()
    run.log(f"done{', but a part failed' if run.failed else ''}; everything is in {options.out}")
    raise SystemExit(run.failed)


if __name__ == "__main__":
    main()
