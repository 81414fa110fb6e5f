"""Writes the reference ids and renders that the tests compare with.

    python3 make.py MODEL_DIR OUT_DIR [STRINGS]

needs the packages tokenizers and jinja2. MODEL_DIR has tokenizer.json and a
chat template. Without STRINGS it makes the committed files, about 400 strings;
with it as many random ones more.
"""
import hashlib, json, os, random, sys, unicodedata
from tokenizers import Tokenizer
import jinja2, jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

model, out = sys.argv[1], sys.argv[2]
extra = int(sys.argv[3]) if len(sys.argv) > 3 else 0
rnd = random.Random(7)
tok = Tokenizer.from_file(f"{model}/tokenizer.json")
added = [a["content"] for a in json.load(open(f"{model}/tokenizer.json"))["added_tokens"]]
config = json.load(open(f"{model}/tokenizer_config.json"))
if os.path.exists(f"{model}/chat_template.jinja"):
    template = open(f"{model}/chat_template.jinja").read()
else:
    template = config["chat_template"]

SCRIPTS = """Hello world. The quick brown fox jumps over the lazy dog, isn't it?
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.
אבגד הוז חטי כלמ נסע פצק רשת
نص حكيم له سر قاطع وذو شأن عظيم ٠١٢٣٤٥٦٧٨٩
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का १२३
อยู่ในเมืองไทย กินข้าวแล้วหรือยัง ๑๒๓
いろはにほへと ちりぬるを、ガギグゲゴ ｶﾞｷﾞ １２３
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.
我能吞下玻璃而不伤身体。北京欢迎你！
Tiếng Việt có dấu: ă â đ ê ô ơ ư ẵ ậ ệ ộ
Äpfel öffnen übel ß ẞ ﬁ ﬂ ſ ŉ ŀ
ქართული ენა ბულბული
Հայերեն լեզու
ಕನ್ನಡ భాష தமிழ் മലയാളം සිංහල ଓଡ଼ିଆ ગુજરાતી ਪੰਜਾਬੀ বাংলা
አማርኛ ትግርኛ ខ្មែរ ລາວ မြန်မာ བོད་སྐད
ᚠᚢᚦᚨᚱᚲ 𐌰𐌱𐌲 𒀀𒀁 𓀀𓀁 𝔘𝔫𝔦 𝟘𝟙𝟚 🄰🄱""".split("\n")
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "🦄👩‍👩‍👧‍👦漢字", "1️⃣", "☺︎☺️", "a👨‍💻b", "😀😀😀", "🧑🏿‍🤝‍🧑🏻 "]
BLANKS = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\n\n\n", " \n", "\n ", " \n ", "\t\t", "\x0b", "\x0c", "\x85", "\xa0",
          "\u1680", "\u2000", "\u2003\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e", "\x1c"]
WORDS = ["a", "Hello", "it's", "IT'S", "we'LL", "I'Ve", "x'd", "'s", "'ſ", "'ſt", "'RE", "'r", "''s", "'", "don't", "12", "3", "½", "²³", "Ⅷ", "٣", "１",
         "3.14", "1,000", "!", "?!", "...", "—", "-", "_", "foo_bar", "a.b", "(x)", "中", "字", "é", "e\u0301", "ñ", "ß", "ſ", "\u0301", "\u200d", "👍", "\x00", "\x7f",
         "ﬀ", "İ", "ı", "K", "Å", "=", "+", "*", "//", "{", "}"]
NFC = ["e\u0301", "E\u0301\u0300", "\u0300e", "q\u0307\u0323", "q\u0323\u0307", "a\u0323\u0307", "\u1e0b\u0323", "ｶﾞ", "가", "\u1100\u1161", "\u1100\u1161\u11a8",
       "\uac00\u11a8", "\u212b", "\u2126", "\u0344", "\u0958", "\u2adc", "\ufb1d", "\u0f73", "\u0f71\u0f72", "\u1d15e", "\U0001d15e", "\u0b47\u0b56", "a" + "\u0301" * 29,
       "a" + "\u0301" * 31, "a" + "\u0323\u0301" * 40, "\u0301" * 35 + "b", "x" + "\u0327\u0301" * 20 + "\u0323", "\u1e69\u0323", "s\u0323\u0307", "ṩ", "ẛ\u0323", "\uf900", "\u09c7\u09be", "e\u0301\u1ac1\u0323", "e\u0301\u0898\u0323\u0898", "\u0c3ce\u0323\u0d3b\u0301", "\U00011935\U00011930", "x\u0301\U0001e130\u0323"]
CODE = ["func main() {\n\tfmt.Println(\"hi\")\n}\n", "for i in range(10):\n    print(i)\n\n\nx = [1, 2]\n", "if (a && b) { return a->b[0]; }  // note\r\n\r\n",
        "SELECT * FROM t WHERE x='y';\n", "<div class=\"a\">\n  <p>text</p>\n</div>", "#!/bin/sh\nset -e\n\necho \"$HOME\" | sed 's/a/b/g'\n", "a=1;b=2;\n\n   \n\tc=3", "\\begin{a}\\\\"]


def rand_text(n):
    parts = []
    for _ in range(n):
        k = rnd.random()
        if k < 0.35: parts.append(rnd.choice(WORDS))
        elif k < 0.6: parts.append(rnd.choice(BLANKS))
        elif k < 0.7: parts.append(chr(rnd.randrange(32, 127)))
        elif k < 0.78: parts.append(rnd.choice(rnd.choice(SCRIPTS).split()))
        elif k < 0.84: parts.append(rnd.choice(added + EMOJI + NFC))
        elif k < 0.87:
            a = rnd.choice(added); parts.append(a[:rnd.randrange(1, len(a))])
        elif k < 0.95: parts.append("".join(rnd.choice("0123456789+-*=() ") for _ in range(rnd.randrange(1, 9))))
        else:
            c = rnd.randrange(0x20, 0x1000 if rnd.random() < .5 else 0x10000)
            parts.append(chr(c) if not 0xD800 <= c < 0xE000 else "x")
    return "".join(parts)


strings = ["", *SCRIPTS, *EMOJI, *BLANKS, *WORDS, *NFC, *CODE]
strings += ["a" + b for b in BLANKS] + ["a" + b + "b" for b in BLANKS] + [b + "1" for b in BLANKS[:9]]
strings += [s for a in added[:8] for s in (a, a + a, a[:-1], a[1:], " " + a + " ", a[:3] + a, a.upper(), "x" + a + "'s")]
strings += [rand_text(rnd.randrange(1, 24)) for _ in range(120 + extra)]
strings += [" ".join(rnd.choice(SCRIPTS).split()[: rnd.randrange(1, 9)]) for _ in range(10)]
long = [("a", 10000), ("ab", 5000), ("the", 3400), (" ", 10000), ("\n", 1000), ("1", 3000), ("中", 3000), ("!", 3000), ("e\u0301", 3000), ("questiontogether", 700)]
root = os.path.dirname(os.path.abspath(__file__)) + "/../../../models/eval/problems.jsonl"
problems = [json.loads(l)["question"] for l in open(root)]
strings += ["<|im_start|>user\n" + q + "<|im_end|>\n<|im_start|>assistant\n" for q in problems[:: 1 if extra else 10]]

encode = []
for s, n in [(s, 1) for s in strings] + long:
    s = s.encode("utf-8", "replace").decode("utf-8", "replace")
    e = tok.encode(s * n, add_special_tokens=False)
    row = {"s": s}
    if n > 1:
        row["n"] = n
    if len(e.ids) > 400:
        row["sha"] = hashlib.sha256(",".join(map(str, e.ids)).encode()).hexdigest()
    else:
        row["ids"] = e.ids
        row["text"] = tok.decode(e.ids, skip_special_tokens=True)
        if row["text"] == s:
            del row["text"]
    encode.append(row)

# Byte soup: ids drawn at random, so that characters are cut anywhere.
decode = []
for _ in range(60):
    ids = [rnd.randrange(tok.get_vocab_size()) if rnd.random() < .6 else tok.token_to_id(rnd.choice("ðŁĺĢâĤ¬Ã©í")) for _ in range(rnd.randrange(1, 30))]
    decode.append({"ids": ids, "skip": tok.decode(ids, skip_special_tokens=True), "all": tok.decode(ids, skip_special_tokens=False)})


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
compiled = env.from_string(template)
names = {k: v for k, v in config.items() if k.endswith("_token") and isinstance(v, str)}

TEXTS = ["", " ", "hi", "2+2?", "line\nline\r\nend\n", "  lead and trail  ", "tab\tand <b>html</b> & 'quotes' \"x\"", "{{ not a tag }} {% if %}", "中文 👩‍👩‍👧‍👦", "\u2028\u00a0x",
         "a</think>b", "<think>\nwhy\n</think>\n\nThe answer is 4.", "</think></think>\n\nx", "a\u0301", "x" * 300, "<tool_response>\n1\n</tool_response>", "None", "\\n \\u0041"]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "It's <the> & \"weather\"\u2028 中文", "parameters": {
    "type": "object", "required": ["city"], "properties": {"zeta": {"type": "number", "minimum": 1.0, "maximum": 1.5e300, "default": -0.0, "multipleOf": 1e-7}, "city": {"type": "string", "enum": [None, True, False, 12345678901234567890123, {}, []]}}}}}]
CALLS = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"zeta\": 2.0, \"city\": \"Oslo \\u00e9 \\n\", \"a\": [1, 1e5, {\"b\": null}]}"}},
         {"id": "c2", "type": "function", "function": {"name": "time", "arguments": ""}}]


def conversation(k):
    m = []
    if k % 3 == 0: m.append({"role": "system", "content": rnd.choice(TEXTS)})
    for _ in range(rnd.randrange(1, 4)):
        m.append({"role": "user", "content": rnd.choice(TEXTS)})
        if rnd.random() < .7:
            if rnd.random() < .4:
                m.append({"role": "assistant", "content": rnd.choice(["", rnd.choice(TEXTS)]), "tool_calls": CALLS[: rnd.randrange(1, 3)]})
                m += [{"role": "tool", "tool_call_id": f"c{i}", "content": rnd.choice(TEXTS)} for i in range(rnd.randrange(1, 3))]
            m.append({"role": "assistant", "content": rnd.choice(TEXTS)})
    if k % 7 == 3: m.append({"role": "system", "content": "late"})
    if k % 2: m.append({"role": "user", "content": rnd.choice(TEXTS), "name": "bob"})
    c = {"messages": m, "gen": rnd.random() < .7}
    if k % 4 == 1: c["tools"] = TOOLS
    if k % 5 < 2: c["args"] = {"enable_thinking": k % 5 == 0}
    return c


def render(c):
    """As servers do: the arguments of tool calls are parsed first."""
    m = json.loads(json.dumps(c["messages"]))
    for x in m:
        for call in x.get("tool_calls", []):
            a = call["function"]["arguments"]
            call["function"]["arguments"] = json.loads(a) if a else {}
    return compiled.render(messages=m, tools=c.get("tools"), documents=None, add_generation_prompt=c["gen"], **names, **c.get("args", {}))


renders = []
for k in range(60):
    c = conversation(k)
    try:
        c["out"] = render(c)
        c["ids"] = tok.encode(c["out"], add_special_tokens=False).ids
    except Exception as e:
        c["error"] = str(e)
    renders.append(c)

for name, rows in (("encode", encode), ("decode", decode), ("render", renders)):
    with open(f"{out}/{name}.json", "w") as f:
        f.write("[" + ",\n".join(json.dumps(r, ensure_ascii=True, separators=(",", ":")) for r in rows) + "]\n")
    print(name, len(rows))
