"""Writes the reference ids of one vocabulary for the opt-in test of large tokenizers.

    pip install tokenizers
    python differential.py DIR [STRINGS]

DIR has tokenizer.json; DIR/golden gets encode.json and decode.json. The corpus has scripts, emoji, runs of white space,
numbers, contractions, special tokens whole and cut, normal forms, invalid UTF-8, random characters of all planes and long
words; with STRINGS that many random mixtures of them (2000). With fewer than 1000 the fixed part is small, too: so small.py
makes the committed goldens.
"""
import hashlib
import json
import os
import random
import sys

from tokenizers import Tokenizer

folder = sys.argv[1]
count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
tok = Tokenizer.from_file(f"{folder}/tokenizer.json")
added = [a["content"] for a in json.load(open(f"{folder}/tokenizer.json"))["added_tokens"]]
rnd = random.Random(11)
# The texts of make.py, without what follows them there.
source = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "make.py"), encoding="utf-8").read()
lists = {}
exec(source[source.index("SCRIPTS ="):source.index("def rand_text")], lists)  # noqa: S102
SCRIPTS, EMOJI, BLANKS, WORDS, NFC, CODE = (lists[k] for k in ("SCRIPTS", "EMOJI", "BLANKS", "WORDS", "NFC", "CODE"))
SCRIPTS += ["ܫܠܡܐ ܥܠܡܐ", "ދިވެހި", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᐃᓄᒃᑎᑐᑦ", "ꦧꦱꦗꦮ", "ⵜⴰⵎⴰⵣⵉⵖⵜ", "ߒߞߏ", "𞤀𞤣𞤤𞤢𞤥", "ᠮᠣᠩᠭᠣᠯ", "᱑᱒ ᱥᱟᱱᱛᱟᱲᱤ", "ⲘⲉⲧⲢⲉⲙ̀ⲛⲭⲏⲙⲓ", "〇一二三〻〇", "ゝゞゟ゠ヽヾヿ・ー", "゙゚゛゜か゚",
            "a\u3099b\u309a", "㐀㒨䶵", "𠀀𪚥", "한글ᄒ ᅡᆫ", "👩🏽‍🔬 test", "①②③ ㈱ ㎏ ㍿", "½⅓ ¹²³ ₁₂₃", "ⅣⅧ", "०१२३४५६७८९०१२", "12345678901234567890", "3.14159e-10", "1,234,567.89", "0x1F4A9"]
BAD = [b"\xff", b"\xe2\x82", b"\xf0\x9f\x91", b"\xed\xa0\x80", b"\xc0\x80", b"a\xf4\x90\x80\x80b", b"\x80\x80", b"\xf0\x9f\x91\x8d\xf0\x9f", b"\xe4\xb8\xad\xe4\xb8"]
CONTROL = ["\x00", "\x01\x02", "\x1b[31m", "\x7f", "\u200b", "\u200e", "\ufeff", "\ufff9", "\U000e0041", "\ue000", "\U0010fffd", "\u0378", "\U0001fa00"]


def point():
    while True:
        c = rnd.choice([rnd.randrange(0x20, 0x800), rnd.randrange(0x800, 0x10000), rnd.randrange(0x10000, 0x20000), rnd.randrange(0x20000, 0x110000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def mixture():
    parts = []
    for _ in range(rnd.randrange(1, 26)):
        k = rnd.random()
        if k < .25: parts.append(rnd.choice(WORDS))
        elif k < .45: parts.append(rnd.choice(BLANKS) * rnd.randrange(1, 4))
        elif k < .55: parts.append(chr(rnd.randrange(32, 127)))
        elif k < .68: parts.append(rnd.choice(rnd.choice(SCRIPTS).split()))
        elif k < .74: parts.append(rnd.choice(EMOJI + NFC + CONTROL))
        elif k < .80: parts.append(rnd.choice(added))
        elif k < .83:
            a = rnd.choice(added)
            parts.append(a[:rnd.randrange(1, len(a) + 1)])
        elif k < .90: parts.append("".join(rnd.choice("0123456789+-*=().,'\"_ ") for _ in range(rnd.randrange(1, 12))))
        elif k < .93: parts.append(rnd.choice(CODE))
        elif k < .95: parts.append(rnd.choice(BAD).decode("utf-8", "replace"))
        else: parts.append(point())
    return "".join(parts)


strings = ["", *SCRIPTS, *EMOJI, *BLANKS, *WORDS, *NFC, *CODE, *CONTROL, *(b.decode("utf-8", "replace") for b in BAD)]
strings += [a + b + c for a in ("a", "1", "!", "中", "\x00") for b in BLANKS for c in ("", "b", "2", "。", "\n")]
strings += [s for a in (added if len(added) < 40 else rnd.sample(added, 40)) for s in (a, a + a, a[:-1], a[1:], " " + a + " ", a[:3] + a, "x" + a + "'s", "\n" + a + "\n")]
full = count >= 1000
if not full:
    strings = rnd.sample(strings, 150) + [" " + a + " x" for a in added] + [a + "\n b" for a in added] + ["x" + a + "y" + a for a in added]
strings += [mixture() for _ in range(count)]
# Every character of planes 0 to 3 and 14, in blocks, between letters, digits and signs.
BLOCK = 64
for base in [*range(0, 0x40000, BLOCK), *range(0xE0000, 0xE1000, BLOCK)] if full else []:
    points = [chr(c) for c in range(base, base + BLOCK) if not 0xD800 <= c < 0xE000]
    if points:
        strings.append(rnd.choice(["", " ", "a", "1", "!", "中", "\n", "'"]).join(points))
LONG = [("a", 100000), ("ab", 50000), ("the", 33334), (" ", 100000), ("\n", 100000), ("1", 100000), ("中", 100000), ("!", 100000), ("e\u0301", 50000),
        ("questiontogether", 6250), ("_-", 50000), ("😀", 25000), ("\x00", 100000), ("a\u3042", 50000)]

if not full:
    LONG = [(s, n // 50) for s, n in LONG]
encode = []
for s, n in [(s, 1) for s in strings] + LONG:
    ids = tok.encode(s * n, add_special_tokens=False).ids
    row = {"s": s}
    if n > 1:
        row["n"] = n
    if len(ids) > 400:
        row["sha"] = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
    else:
        row["ids"] = ids
        row["text"] = tok.decode(ids, skip_special_tokens=True)
        if row["text"] == s:
            del row["text"]
    row["prompt"] = len(tok.encode(s, add_special_tokens=True).ids) - len(ids) if n == 1 else 0
    encode.append(row)

decode = []
for _ in range(300 if full else 40):
    ids = [rnd.randrange(tok.get_vocab_size()) for _ in range(rnd.randrange(1, 30))]
    decode.append({"ids": ids, "skip": tok.decode(ids, skip_special_tokens=True), "all": tok.decode(ids, skip_special_tokens=False)})

os.makedirs(f"{folder}/golden", exist_ok=True)
for name, rows in (("encode", encode), ("decode", decode)):
    with open(f"{folder}/golden/{name}.json", "w") as f:
        json.dump(rows, f, ensure_ascii=True, separators=(",", ":"))
    print(folder, name, len(rows))
