"""Decisions of every routing policy, worked out a second time.

Usage, from the repository's root: python3 policies/testdata/decisions.py > policies/testdata/decisions.json

The inputs are recorded logits and hidden states of the tiny models
(models/testdata/golden). Everything is computed here from the published
formulas, on text where the Go code works on ids, with the standard library
alone. A decision is the next model, k or d (candidate kept or dropped), and
after a + the number of ids that are forced into the text.
"""

import json
import math
import struct

THINK_END = 748
CLOSE = "\n</think>\n\n"
F32 = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]


def tensors(name):
    with open(f"models/testdata/golden/{name}.golden.safetensors", "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(size))
        data = f.read()
    out = {}
    for key, t in head.items():
        if key == "__metadata__":
            continue
        a, b = t["data_offsets"]
        code = {"F32": "f", "I32": "i"}[t["dtype"]]
        flat = struct.unpack(f"<{(b - a) // 4}{code}", data[a:b])
        if len(t["shape"]) == 2:
            w = t["shape"][1]
            flat = [flat[i:i + w] for i in range(0, len(flat), w)]
        out[key] = flat
    return out


def byte_table():
    """The bytes of the printable letters of a byte-level vocabulary."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, n = {}, 0
    for b in range(256):
        if b in keep:
            table[chr(b)] = b
        else:
            table[chr(256 + n)] = b
            n += 1
    return table


class Text:
    """One recorded answer of one model."""

    def __init__(self, model, index, vocabulary):
        t = tensors(model)
        with open(f"models/testdata/golden/{model}.greedy.json") as f:
            rec = json.load(f)[index]
        self.prompt, self.ids = rec["prompt_ids"], t[f"ids{index}"]
        self.logits = t[f"logits{index}"]
        self.hidden = t.get(f"hidden{index}.{2 if model == 'tiny-s' else 6}")
        self.vocabulary = vocabulary

    def rows(self):
        return range(len(self.ids) - len(self.prompt))

    def z(self, n):
        return self.logits[len(self.prompt) - 1 + n]

    def candidate(self, n):
        z = self.z(n)
        return max(range(len(z)), key=lambda i: (z[i], -i))

    def answer(self, n):
        return list(self.ids[len(self.prompt):len(self.prompt) + n])

    def has_hidden(self, n):
        return self.hidden is not None and (len(self.prompt) - 1 + n) % 8 == 0

    def score(self, n):
        """A network's output: sigmoid of one product with the hidden state."""
        h = self.hidden[(len(self.prompt) - 1 + n) // 8]
        return F32(1 / (1 + math.exp(-sum(x * math.sin(1.7 * i) for i, x in enumerate(h)) / 4)))


def softmax(z, temperature=1.0):
    m = max(z)
    e = [math.exp((x - m) / temperature) for x in z]
    s = sum(e)
    return [x / s for x in e]


def entropy(p):
    return -sum(x * math.log(x) for x in p if x > 0)


def largest(z, k):
    return sorted(range(len(z)), key=lambda i: (-z[i], i))[:k]


def wrote(i):
    """Who wrote token i of the answers here: every third is the other model's."""
    return 1 if i % 3 == 2 else 0


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(seed, position, model):
    w = philox([0, position, model | 1 << 8, 0], [seed & 0xFFFFFFFF, seed >> 32])
    return ((w[0] >> 11) << 32 | w[1]) / 2 ** 53


def digamma(x):
    """By differences of ln Γ, which is another way than the Go code's."""
    shift = 0.0
    while x < 1e4:
        shift -= 1 / x
        x += 1
    return shift + math.log(x) - 1 / (2 * x) - 1 / (12 * x * x)


STAY, DROP, BACK, OTHER = "0k", "1d", "0k", "1k"


def r_stitch(t, n, self, tau, gate=None):
    z = t.z(n)
    h = entropy(softmax(z)) / math.log(len(z))
    if self == 0:
        return STAY if h <= tau or gate is not None and t.score(n) >= gate else DROP
    return BACK if h <= tau else OTHER


def one_token(route):
    """A policy of one question about the entry model's candidate."""
    return lambda t, n, self, **set: BACK if self else (DROP if route(t, n, **set) else STAY)


def warm(eta, n, tokens, shape):
    if n >= tokens:
        return eta
    x = n / tokens
    if shape == "linear":
        return (1 - x) * 1 + x * eta
    if shape == "cosine":
        return (1 + eta) / 2 + (1 - eta) / 2 * math.cos(math.pi * x)
    return math.exp(x * math.log(eta))


def immediate(t, n, tau, epistemic=None, nats=None):
    z = t.z(n)
    x = [z[i] for i in largest(z, 10)]
    a = sum(x)
    au = -sum(v / a * (digamma(v + 1) - digamma(a + 1)) for v in x)
    eu = 10 / (a + 10)
    return au >= tau and (epistemic is None or eu >= epistemic) and (nats is None or entropy(softmax(z)) >= nats)


def glimp(t, n, self, tau, step_tokens=512, think_tokens=8192):
    """Reads the whole answer again for every decision, as text."""
    steps, step, thought = [], [], 0
    ids = t.answer(n)

    def feed(token):
        """Adds a token; returns what it ends: step, thinking, or nothing."""
        nonlocal step, thought
        thought += 1
        if token == THINK_END:
            return "thinking"
        step.append(token)
        ended = None
        if "\n\n" in "".join(t.vocabulary[i] for i in step) or len(step) == step_tokens:
            ended = "step"
            if steps and steps[-1] == step:
                return "thinking"
            steps.append(step)
            step = []
        return "thinking" if thought >= think_tokens else ended

    thinking = True
    for token in ids:
        if thinking and feed(token) == "thinking":
            thinking = False
    if not thinking:
        return DROP if self == 0 else OTHER
    if self == 0 and not step:
        z = t.z(n)
        if entropy(softmax([z[i] for i in largest(z, 20)])) >= tau:
            return DROP
    y = t.candidate(n)
    end = feed(y)
    if end == "thinking":
        forced = CLOSE.split("</think>")[1] if y == THINK_END else CLOSE
        return f"1k+{json.dumps(forced)}"
    if end == "step" and self == 1:
        return BACK
    return f"{self}k"


def main():
    with open("models/tiny-s/tokenizer.json") as f:
        tok = json.load(f)
    table = byte_table()
    vocabulary = {}
    for word, i in tok["model"]["vocab"].items():
        vocabulary[i] = bytes(table[c] for c in word).decode("utf-8", "replace")
    for a in tok["added_tokens"]:
        vocabulary[a["id"]] = a["content"]
    texts = {(m, i): Text(m, i, vocabulary) for m in ("tiny-s", "tiny-l") for i in (0, 1)}
    cases = []

    def add(policy, settings, decide, self=0, text=0, scored=False, **set):
        t = texts["tiny-l" if self else "tiny-s", text]
        rows = [n for n in t.rows() if not scored or t.has_hidden(n)]
        cases.append({
            "policy": policy, "settings": settings, "self": self, "text": text, "rows": rows,
            "scores": [t.score(n) for n in rows] if scored else None,
            "decisions": [decide(t, n, self, **set) for n in rows],
        })

    s0 = texts["tiny-s", 0]
    hidden = [n for n in s0.rows() if s0.has_hidden(n)]
    score = sorted(s0.score(n) for n in hidden)
    for self in (0, 1):
        for text in (0, 1):
            for tau in (0.001, 0.01, 0.03, 0.1):
                add("r-stitch", {"Threshold": tau}, r_stitch, self, text, tau=tau)
            for tau in (0.01, 0.3, 0.9):
                add("glimp-router", {"Threshold": tau}, glimp, self, text, tau=tau)
            add("glimp-router", {"Threshold": 0.2, "StepTokens": 7}, glimp, self, text, tau=0.2, step_tokens=7)
            add("glimp-router", {"Threshold": 0.2, "ThinkTokens": 20}, glimp, self, text, tau=0.2, think_tokens=20)
            add("entropy", {"Threshold": 0.45}, one_token(lambda t, n: entropy(softmax(t.z(n))) >= 0.45), self, text)
        add("r2r", {"Threshold": 0.5}, one_token(lambda t, n: t.score(n) >= 0.5), self, scored=self == 0)
    for tau in (score[1], score[3], F32(score[3] + 1e-6), 0.0, 1.0):  # equality on both sides
        add("r2r", {"Threshold": tau}, one_token(lambda t, n: t.score(n) >= tau), scored=True)
        add("citer", {"Threshold": tau}, one_token(lambda t, n: t.score(n) < tau), scored=True)
        add("co-llm", {"Threshold": tau}, one_token(lambda t, n: t.score(n) > tau), scored=True)
        add("r-stitch+", {"Threshold": 0.001, "NetThreshold": tau}, r_stitch, scored=True, tau=0.001, gate=tau)
    for shape in ("linear", "cosine", "exponential"):
        add("co-llm", {"Threshold": 0.15, "Warmup": 30, "WarmupShape": shape},
            one_token(lambda t, n: t.score(n) > F32(warm(0.15, n, 30, shape))), scored=True)
    for tau in (2.0, 2.275, 2.302):
        add("immediate", {"Threshold": tau}, one_token(lambda t, n: immediate(t, n, tau)))
        add("immediate", {"Threshold": tau, "Epistemic": 0.06, "Entropy": 0.1},
            one_token(lambda t, n: immediate(t, n, tau, 0.06, 0.1)))
    for p in (0.1, 0.5):
        add("random", {"Threshold": p}, one_token(lambda t, n: uniform(1, len(t.prompt) + n, 0) < p))
    for self in (0, 1):
        def me(t, n, self):
            return "1k" if uniform(1, len(t.prompt) + n + 1, 0) >= 0.7 else "0k"
        add("me", {"Weights": [0.7, 0.3]}, me, self)
    for tau in (0.00001, 0.0002, 0.1):
        def request_level(t, n, self):
            z = t.z(0)
            route = n == 0 and entropy(softmax(z)) / math.log(len(z)) >= tau
            return DROP if route else STAY
        add("request-level", {"Threshold": tau}, request_level)
    rules(add)
    print(json.dumps({"cases": cases}, separators=(",", ":")).replace('{"policy"', '\n{"policy"'))


def rules(add):
    """Each expression beside the same thing in Python."""
    def h(t, n):
        return entropy(softmax(t.z(n))) / math.log(len(t.z(n)))

    def margin(t, n):
        a, b = largest(t.z(n), 2)
        return t.z(n)[a] - t.z(n)[b]

    def since(t, n):
        # Every third token is the other model's, so runs are two and one long.
        return 0 if n == 0 else {0: 1, 1: 1, 2: 2}[n % 3]

    def thinking(t, n):
        a = t.answer(n)
        return 747 in a and THINK_END not in a

    share = lambda n: (n // 3) / n if n else 0.0
    for text, f in {
        "entropy > 0.01": lambda t, n: h(t, n) > 0.01,
        "entropy > 0.05 || margin < 2 && since_hop > 1": lambda t, n: h(t, n) > 0.05 or margin(t, n) < 2 and since(t, n) > 1,
        "entropy_nats >= 0.2 and phase == 'think'": lambda t, n: h(t, n) * math.log(len(t.z(n))) >= 0.2 and thinking(t, n),
        "top1 < 0.9 and large_share < 0.33": lambda t, n: max(softmax(t.z(n))) < 0.9 and share(n) < 0.33,
        "position % 5 == 4 or token in [748, 382]": lambda t, n: n % 5 == 4 or t.candidate(n) in (748, 382),
        "prompt_len + position > 50 and text == ' '": lambda t, n: len(t.prompt) + n > 50 and t.vocabulary[t.candidate(n)] == " ",
        "max(entropy, 0.02) > min(0.03, 1.0)": lambda t, n: max(h(t, n), 0.02) > 0.03,
    }.items():
        add("rule", {"Rule": text}, one_token(f))
    add("rule", {"Rule": "entropy > 0.01 ? 'tiny-l' : 'tiny-s'"}, one_token(lambda t, n: h(t, n) > 0.01))
    add("rule", {"Rule": "false", "ReturnRule": "entropy < 0.001 or since_hop >= 2"},
        lambda t, n, self: BACK if h(t, n) < 0.001 or since(t, n) >= 2 else OTHER, 1)


main()
