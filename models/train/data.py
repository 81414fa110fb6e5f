"""Generated arithmetic: problems, their solutions in steps, and packed rows of tokens.

Everything is drawn from seeds, and nothing here needs PyTorch, so that worker
processes start fast.
"""

import random
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from tokenizers import Tokenizer

from .tokens import END_THINK, IM_END, IM_START, PAD, THINK

NAMES = ("Ada Ben Cara Dan Eve Finn Gus Hana Ivan Jia Kofi Lena Mia Noor Omar Pia Quinn Rosa "
         "Sam Tara Uma Vik Wen Yara Zoe").split()
ITEMS = "apples beads books cakes cards coins eggs marbles nuts pears pens plums shells stamps tiles".split()
HOLDERS = "bags baskets boxes crates jars packs trays".split()
GREETINGS = ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Good morning", "Good evening", "Hey")
GREETED = "Hello! Give me a sum or a short story problem and I will work it out step by step."
WHO = ("Who are you?", "What are you?", "What can you do?", "What is this?")
SELF = "I am a tiny model that knows arithmetic. Small and large models write my answers together."


@dataclass
class Problem:
    """A question, the steps of its solution (none for small talk) and the last line."""

    question: str
    steps: list
    last: str
    answer: int | None = None


def product(a, b):
    """Writes out a * b; the smaller factor is split into tens and ones if it has both."""
    a, b = max(a, b), min(a, b)
    if b < 10 or b % 10 == 0:
        return f"{a} * {b} = {a * b}"
    tens, ones = b // 10 * 10, b % 10
    return f"{a} * {b} = {a} * {tens} + {a} * {ones} = {a * tens} + {a * ones} = {a * b}"


def asked(r, expression):
    return r.choice(("{} = ?", "What is {}?", "Compute {}", "Calculate {}.", "Please work out {}.")).format(expression)


def plain(r):
    """One operation on two numbers."""
    kind = r.choices("+-*", (3, 5, 6))[0]
    if kind == "*":
        a, b = r.randint(2, 399), r.randint(2, 39)
        return asked(r, f"{a} * {b}"), [f"Compute {product(a, b)}."], a * b, None
    if kind == "+":
        a, b = r.randint(100, 4999), r.randint(100, 4999)
        n = a + b
    else:
        b = r.randint(2, 99)
        a = b + r.randint(2, 240)
        n = a - b
    return asked(r, f"{a} {kind} {b}"), [f"Compute {a} {kind} {b} = {n}."], n, None


def brackets(r):
    a, b, c = r.randint(2, 299), r.randint(2, 99), r.randint(2, 39)
    steps = [f"Inside the brackets: {a} + {b} = {a + b}.", f"Then multiply: {product(a + b, c)}."]
    return asked(r, f"({a} + {b}) * {c}"), steps, (a + b) * c, None


def precedence(r):
    b, c = r.randint(2, 99), r.randint(2, 39)
    first = f"Multiply first: {product(b, c)}."
    if r.random() < .53:
        a = r.randint(2, 299)
        return asked(r, f"{a} + {b} * {c}"), [first, f"Then add: {a} + {b * c} = {a + b * c}."], a + b * c, None
    n = r.randint(2, 299)
    a = n + b * c
    return asked(r, f"{a} - {b} * {c}"), [first, f"Then subtract: {a} - {b * c} = {n}."], n, None


def numbers(r):
    xs = [r.randint(1, 99) for _ in range(r.randint(3, 8))]
    steps, total = [], xs[0]
    for x in xs[1:]:
        steps.append(f"{total} + {x} = {total + x}.")
        total += x
    return f"Add these numbers: {', '.join(map(str, xs))}.", steps, total, None


def chain(r, least=3, most=25):
    v = r.randint(2, 49)
    said, steps = [f"Start with {v}."], [f"Start: {v}."]
    for _ in range(r.randint(least, most)):
        kinds = ["half", "add", "subtract" if v >= 15 else "", "multiply" if v < 300 else "half"]
        kind = r.choice([k for k in kinds if k])
        if kind == "half" and v % 2 == 0:
            words, sum_, v = "Halve it", f"{v} / 2 = {v // 2}", v // 2
        elif kind in ("half", "add"):
            x = 1 if kind == "half" else r.randint(2, 399)
            words, sum_, v = f"Add {x}", f"{v} + {x} = {v + x}", v + x
        elif kind == "subtract":
            x = r.randint(2, min(v - 1, 399))
            words, sum_, v = f"Subtract {x}", f"{v} - {x} = {v - x}", v - x
        else:
            x = r.randint(2, 9)
            words, sum_, v = f"Multiply by {x}", f"{v} * {x} = {v * x}", v * x
        said.append(words + ".")
        steps.append(f"{words}: {sum_}.")
    return " ".join(said) + " What is the result?", steps, v, None


def minutes(r):
    h, m = r.randint(1, 11), r.randint(2, 59)
    steps = [f"The hours: {product(60, h)}.", f"With the minutes: {60 * h} + {m} = {60 * h + m}."]
    return f"How many minutes are {h} hours and {m} minutes?", steps, 60 * h + m, None


def more(r):
    (p, q), it = r.sample(NAMES, 2), r.choice(ITEMS)
    a, b = r.randint(4, 499), r.randint(2, 99)
    question = f"{p} has {a} {it}. {q} has {b} more {it} than {p}. How many {it} do they have together?"
    return question, [f"{q} has {a} + {b} = {a + b} {it}.", f"Together: {a + b} + {a} = {2 * a + b}."], 2 * a + b, it


def gave(r):
    p, it = r.choice(NAMES), r.choice(ITEMS)
    b, c, n = r.randint(2, 89), r.randint(2, 29), r.randint(2, 499)
    a = b * c + n
    question = f"{p} had {a} {it} and gave {b} {it} to each of {c} friends. How many {it} are left?"
    return question, [f"{p} gave away {product(b, c)} {it}.", f"What is left: {a} - {b * c} = {n}."], n, it


def shares(r):
    p, it, holder = r.choice(NAMES), r.choice(ITEMS), r.choice(HOLDERS)
    n, q, x = r.randint(2, 29), r.randint(2, 89), r.randint(2, 89)
    question = (f"{p} shares {n * q} {it} equally among {n} {holder}, then puts {x} more {it} into one of them. "
                f"How many {it} are in that one?")
    return question, [f"Each gets {n * q} / {n} = {q} {it}.", f"With {x} more: {q} + {x} = {q + x}."], q + x, it


def pays(r):
    p, it, holder = r.choice(NAMES), r.choice(ITEMS), r.choice(HOLDERS)
    n, price, each, card = r.randint(2, 29), r.randint(4, 39), r.randint(4, 89), r.randint(2, 59)
    a, b = n * price, 4 * each
    question = (f"{p} buys {n} {holder} at {price} coins each, 4 {it} at {each} coins each and a card for {card} coins. "
                f"How many coins does {p} pay?")
    steps = [f"The {holder} cost {product(n, price)}.", f"The {it} cost {product(4, each)}.",
             f"Both together: {a} + {b} = {a + b}.", f"With the card: {a + b} + {card} = {a + b + card}."]
    return question, steps, a + b + card, "coins"


def buys(r):
    p, it, holder = r.choice(NAMES), r.choice(ITEMS), r.choice(HOLDERS)
    a, n, each = r.randint(20, 499), r.randint(2, 29), r.randint(4, 89)
    question = f"{p} has {a} {it}. {p} buys {n} {holder} with {each} {it} each. How many {it} does {p} have now?"
    steps = [f"The {n} {holder} hold {product(n, each)} {it}.",
             f"Together with the first {a}: {a} + {n * each} = {a + n * each}."]
    return question, steps, a + n * each, it


# Families with their weights in the evaluation set.
FAMILIES = {chain: 19, numbers: 11, more: 10, brackets: 9, gave: 8, minutes: 7, plain: 7, shares: 7, pays: 6,
            precedence: 12, buys: 4}


def problem(r, kind=None):
    """Draws a problem; r is a random.Random."""
    kind = kind or r.choices(list(FAMILIES), list(FAMILIES.values()))[0]
    question, steps, answer, unit = kind(r)
    named = f" {unit}" if unit and r.random() < .5 else ""
    return Problem(question, steps, f"The answer is {answer}{named}.", answer)


def small_talk(r):
    if r.random() < .6:
        return Problem(r.choice(GREETINGS), [], GREETED)
    return Problem(r.choice(WHO), [], SELF)


class Encoder:
    """The shared byte-level BPE tokenizer, with the ids of every word remembered."""

    # The Qwen pre-tokenizer for ASCII. No merge crosses a piece, so pieces can be encoded one by one.
    PIECE = re.compile(r"'(?:[sdmtSDMT]|ll|ve|re|LL|VE|RE)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*"
                       r"|\s*[\r\n]+|\s+(?!\S)|\s+")

    def __init__(self, file):
        self.tokenizer = Tokenizer.from_file(str(file))
        self.known = {}

    def words(self, text):
        """Ids of text without special tokens."""
        ids = []
        for piece in self.PIECE.findall(text):
            found = self.known.get(piece)
            if found is None:
                found = self.known[piece] = self.tokenizer.encode(piece, add_special_tokens=False).ids
            ids += found
        return ids

    def prompt(self, question):
        return ([IM_START] + self.words("user\n" + question) + [IM_END] + self.words("\n") + [IM_START]
                + self.words("assistant\n"))

    def answer(self, p):
        """The thoughts and the answer of a problem, with the end token."""
        if not p.steps:
            return self.empty_thought() + self.words(p.last) + [IM_END]
        return ([THINK] + self.words("\n" + "\n\n".join(p.steps) + "\n") + [END_THINK]
                + self.words("\n\n" + p.last) + [IM_END])

    def empty_thought(self):
        """What the chat template puts before an answer when thinking is off."""
        return [THINK] + self.words("\n\n") + [END_THINK] + self.words("\n\n")

    def document(self, r, p):
        """Ids, and how many at the front are not to be learned."""
        prompt = self.prompt(p.question)
        if p.steps and r.random() < .05:
            prompt += self.empty_thought()
            return prompt + self.words(" ".join(p.steps + [p.last])) + [IM_END], len(prompt)
        return prompt + self.answer(p), len(prompt)

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def answer_of(text):
    """The number of the last "The answer is N", as the command `trctl eval` reads it."""
    found = re.findall(r"The answer is\s+(-?[0-9][0-9,]*(?:\.[0-9]+)?)", text)
    return float(found[-1].replace(",", "")) if found else None


# A stored id carries LEARN if its prediction is part of the loss.
LEARN = 1 << 15


def pack(tokenizer, seed, rows, width):
    """Draws documents and lays them end to end into an array [rows, width] of uint16.

    A document goes to the fullest row that has room for it, among some open ones.
    """
    r, encoder = random.Random(seed), Encoder(tokenizer)
    out = np.full((rows, width), PAD, np.uint16)
    free = list(range(rows))
    opened, used = [], {}
    while free or opened:
        p = small_talk(r) if r.random() < .01 else problem(r)
        ids, skip = encoder.document(r, p)
        if len(ids) > width:
            continue
        fits = [i for i in opened if used[i] + len(ids) <= width]
        if fits:
            row = max(fits, key=used.get)
        elif free:
            row = free.pop()
            opened.append(row)
            used[row] = 0
        else:
            break
        at = used[row]
        out[row, at:at + len(ids)] = ids
        out[row, at + skip:at + len(ids)] |= LEARN
        used[row] = at + len(ids)
        if used[row] > width - 24 or len(opened) > 24:
            opened.remove(max(opened, key=used.get))
    return out


@dataclass(frozen=True)
class Packed:
    """Packed rows in a file, which some processes fill part by part while others read.

    A second file has a byte for each part, which is set once the part is whole.
    """

    folder: str
    rows: int
    width: int
    part: int

    @classmethod
    def create(cls, folder, rows, width, part):
        packed = cls(str(folder), rows, width, part)
        for name, size in (("rows.bin", 2 * rows * width), ("whole.bin", -(-rows // part))):
            with open(f"{folder}/{name}", "wb") as f:
                f.truncate(size)
        return packed

    def _map(self, mode):
        return (np.memmap(f"{self.folder}/rows.bin", np.uint16, mode, shape=(self.rows, self.width)),
                np.memmap(f"{self.folder}/whole.bin", np.uint8, mode))

    def write(self, i, array):
        rows, whole = self._map("r+")
        rows[i * self.part:(i + 1) * self.part] = array
        whole[i] = 1

    def read(self, row):
        """The part that begins at this row, or None as long as it is not whole."""
        rows, whole = self._map("r")
        return np.array(rows[row:row + self.part]) if whole[row // self.part] else None


def pack_part(tokenizer, seed, rows, packed, i):
    packed.write(i, pack(tokenizer, seed, rows, packed.width))


def draw(tokenizer, seed, n, known):
    """Draws n problems whose questions are not in known, as pairs of prompt and answer (ids)."""
    r, encoder, out = random.Random(seed), Encoder(tokenizer), []
    while len(out) < n:
        p = problem(r)
        if p.question not in known:
            out.append((encoder.prompt(p.question), encoder.answer(p)))
    return out


class Workers:
    """Processes that draw while the accelerator works. What they draw does not depend on how many they are."""

    def __init__(self, tokenizer, seed, processes):
        # Forked, before anything touches the accelerator.
        self.pool = ProcessPoolExecutor(processes, mp_context=get_context("fork"))
        self.tokenizer, self.seed, self.packing = tokenizer, seed, []

    def first(self, stream):
        """The seed of a stream's first part; those of the others follow."""
        return (self.seed * 1009 + stream) * 1_000_003

    def _parts(self, stream, total, part):
        """The number, the seed and the size of each part."""
        first = self.first(stream)
        return [(i, first + i, min(part, total - i * part)) for i in range(-(-total // part))]

    def packed(self, folder, rows, width, part=2048):
        """Has rows packed into a file in this folder."""
        packed = Packed.create(folder, rows, width, part)
        self.packing = [self.pool.submit(pack_part, self.tokenizer, seed, n, packed, i)
                        for i, seed, n in self._parts(0, rows, part)]
        return packed

    def check(self):
        """Raises what went wrong while rows were packed, if anything did."""
        for asked in self.packing:
            if asked.done():
                asked.result()

    def texts(self, stream, n, known, part=1000):
        """Asks for problems; the result returns them when it is called. Streams above 0 are independent."""
        asked = [self.pool.submit(draw, self.tokenizer, seed, m, known) for _, seed, m in self._parts(stream, n, part)]
        return lambda: [text for a in asked for text in a.result()]

    def close(self):
        self.pool.shutdown(wait=True, cancel_futures=True)
