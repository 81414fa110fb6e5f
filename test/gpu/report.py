"""Tables from what trctl bench and trctl bench-step have measured, for the scripts beside this file.

    report.py prompts N LENGTH VOCAB     N different prompts as token ids, one JSON object a line
    report.py metrics URL                the server's counters by model, as JSON
    report.py routed DIR TRCTL           efficiency of routed generation (routed.sh)
    report.py http DIR                   time of tokens over HTTP beside bare steps (run.sh http)
    report.py cost A.json B.json         how much slower the steps of B are
"""
import glob
import json
import os
import subprocess
import sys
import urllib.request

# Floors of the design for a small model on one GPU and a large one on another, Qwen3-0.6B and 32B at a context of 2k on H200,
# with models that start at once: tokens a second by probability and requests in flight. TestFloorsOfTheDesign has them too.
DESIGN = {
    0.05: {1: 907, 4: 2426, 8: 4603, 16: 8105, 32: 11286},
    0.1: {1: 537, 4: 1290, 8: 2536, 16: 4881, 32: 8882},
    0.15: {1: 384, 4: 873, 8: 1718, 16: 3331, 32: 6267},
    0.35: {1: 180, 4: 380, 8: 748, 16: 1449, 32: 2730},
}


def load(path):
    with open(path) as f:
        return json.load(f)


def prompts(n, length, vocab):
    for i in range(n):
        print(json.dumps({"prompt_ids": [(7919 * k + 104729 * i * i + 31 * i + 5) % vocab for k in range(length)]}))


def metrics(url):
    """Counters of all replicas, summed by model."""
    out = {}
    with urllib.request.urlopen(url + "/metrics", timeout=10) as r:
        for line in r.read().decode().splitlines():
            name, _, rest = line.partition("{")
            if not name.startswith("trctl_") or not name.endswith("_total") or 'model="' not in rest:
                continue
            model, value = rest.split('model="')[1].split('"')[0], float(line.rsplit(" ", 1)[1])
            of = out.setdefault(model, {})
            of[name[6:-6]] = of.get(name[6:-6], 0) + value
    print(json.dumps(out))


def times(lines, kind, tokens, field, n):
    """Step times in milliseconds for 1 to n rows, between those that were measured."""
    known = sorted((x["rows"], x[field]) for x in lines if x["kind"] == kind and x["tokens_per_row"] == tokens)
    out = []
    for rows in range(1, n + 1):
        at = max(i for i, (r, _) in enumerate(known) if r <= rows)
        r0, t0 = known[at]
        r1, t1 = known[min(at + 1, len(known) - 1)]
        t = t0 if r1 == r0 else t0 + (t1 - t0) * (rows - r0) / (r1 - r0)
        out.append(max([round(t, 3)] + out))  # more rows are not faster; whole microseconds, as the solver counts in ticks
    return out


def floor(trctl, p, n, steps):
    """The most tokens a second with such steps, by internal/floor over a drawn trace; 0 for a device without a roofline."""
    if min(min(s) for s in steps) <= 0:
        return 0
    case = {"n": n, "p": [[1 - p, p], [1, 0]], "commit": [[1, 0], [1, 0]], "t": steps, "exact": True}
    run = subprocess.run([trctl, "sweep", "--simulate", "--schedules", "lockstep", "-f", "-", "-o", "json"],
                         input=json.dumps(case), capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"floor of {case}: {run.stderr}")
    return json.loads(run.stdout)["floor_tokens_per_s"]


def share(a, b):
    return f"{100 * a / b:.0f} %" if b else "-"


def routed(folder, trctl):
    small, large = (load(os.path.join(folder, f"steps-{m}.json"))["lines"] for m in ("small", "large"))
    head = ["p", "N", "tokens/s", "N*user", "large", "design", "eff", "roofline", "eff", "bare", "eff", "rows S L", "k", "ms S L", "cached", "B"]
    widths = [5, 3, 9, 8, 7, 7, 6, 9, 6, 8, 6, 11, 5, 12, 7, 0]
    print("  ".join(h.rjust(w) for h, w in zip(head, widths)))
    for path in sorted(glob.glob(os.path.join(folder, "point-*.json")), key=lambda x: [float(v) for v in x[:-5].split("-")[-2:]]):
        r = load(path)
        p, n = (float(v) for v in path[:-5].split("-")[-2:])
        n = int(n)
        names = [m["name"] for m in r["routing"]["models"]]
        before, after = load(path.replace("point-", "before-")), load(path.replace("point-", "after-"))
        d = [{k: after[m][k] - before[m].get(k, 0) for k in after[m]} for m in names]
        steps = [max(x["steps"], 1) for x in d]
        rows = [x["step_rows"] / s for x, s in zip(d, steps)]
        took = [1e3 * x["step_seconds"] / s for x, s in zip(d, steps)]
        hits = sum(x["prefix_cache_hits"] for x in d) / max(sum(x["prefix_cache_queries"] for x in d), 1)
        k = d[1]["step_tokens"] / max(d[1]["step_rows"], 1)
        lengths = sorted({x["tokens_per_row"] for x in large if x["kind"] == "extend"}, key=lambda t: abs(t - 1 / p))
        # The share of the tokens that the large model wrote is the probability that it was asked.
        real = r["routing"]["large_share"]
        best = [floor(trctl, real, n, [times(small, "decode", 1, f, n), times(large, "extend", lengths[0], f, n)]) for f in ("floor_ms", "step_ms")]
        design = DESIGN.get(p, {}).get(n, 0) if names == ["qwen3-0.6b", "qwen3-32b"] else 0
        made, user = r["output_tokens_per_s"], r["per_user_tokens_per_s"]["mean"]
        used = load(path.replace("point-", "thresholds-"))["deployments"][0]
        cells = [f"{p:g}", str(n), f"{made:.0f}", f"{n * user:.0f}", f"{100 * real:.1f} %", f"{design}", share(made, design), f"{best[0]:.0f}",
                 share(made, best[0]), f"{best[1]:.0f}", share(made, best[1]), f"{rows[0]:.2f} {rows[1]:.2f}", f"{k:.1f}",
                 f"{took[0]:.2f} {took[1]:.2f}", f"{100 * hits:.0f} %", " ".join(str(b) for b in used["b"])]
        print("  ".join(c.rjust(w) for c, w in zip(cells, widths)))
        if r["failed"]:
            print(f"  {r['failed']} of {r['requests']} requests failed: {r['errors']}")
    print("design: its floor, models start at once; roofline: internal/floor with steps at the memory's speed and the best thresholds, for the "
          "share of large\ntokens that was met; bare: the same with the steps that bench-step measured; N*user: requests in flight times the mean "
          "speed of one after its\nfirst token; k: tokens that the large model read for a row; cached: full pages of prompts that were in the "
          "prefix cache; B: thresholds in use")


def http(folder):
    bare = {mode: load(os.path.join(folder, f"steps-{mode}.json"))["lines"] for mode in ("plain", "ahead")}
    prefill = next(x["step_ms"] for x in bare["plain"] if x["kind"] == "prefill")
    head = ["N", "step", "ahead", "gap p50", "p99", "a token p50", "- step", "prefill", "first p50", "p99"]
    widths = [3, 8, 8, 9, 9, 12, 8, 9, 10, 9]
    print(" ".join(h.rjust(w) for h, w in zip(head, widths)) + "  ms")
    for path in sorted(glob.glob(os.path.join(folder, "http-*.json")), key=lambda x: int(x[:-5].split("-")[-1])):
        r, n = load(path), int(path[:-5].split("-")[-1])
        step, ahead = (next(x["step_ms"] for x in bare[m] if x["kind"] == "decode" and x["rows"] == n) for m in ("plain", "ahead"))
        gap, token, first = r["inter_token_ms"], r["time_per_output_token_ms"]["p50"], r["ttft_ms"]
        cells = [step, ahead, gap["p50"], gap["p99"], token, token - step, prefill, first["p50"], first["p99"]]
        print(" ".join(c.rjust(w) for c, w in zip([str(n)] + [f"{c:.3f}" for c in cells], widths)))
    print("step, ahead, prefill: bench-step; gap: between pieces of a stream; a token: from a request's first to its last, a token on average")


def cost(a, b):
    a, b = load(a), load(b)
    print(f"{a['model']}: {b['mode']} beside {a['mode']}")
    for x, y in zip(a["lines"], b["lines"]):
        print(f"  {x['kind']:8} {x['rows']:3} x {x['tokens_per_row']:5}  {x['step_ms']:9.3f} {y['step_ms']:9.3f} ms  {100 * (y['step_ms'] / x['step_ms'] - 1):+6.1f} %")


if __name__ == "__main__":
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "prompts":
        prompts(*(int(x) for x in rest))
    else:
        {"metrics": metrics, "routed": routed, "http": http, "cost": cost}[what](*rest)
