"""Writes what the reference renderer makes of a table of conversations, for each template *.jinja of a folder.

    pip install jinja2
    python renders.py DIR

DIR/NAME.renders.json is written beside each DIR/NAME.jinja. As servers do, arguments of calls are parsed first and content
that is null is an empty text for templates that do not ask; a template that fails with parsed arguments gets them as text.
"""
import datetime
import glob
import json
import os
import random
import re
import sys

here = os.path.dirname(os.path.abspath(__file__))
source = open(f"{here}/../jinja/testdata/reference.py", encoding="utf-8").read()
scope = {}
exec(source[:source.index("VARS =")], scope)  # noqa: S102
env = scope["env"]
env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 3, 5).strftime(f)
NAMES = {"bos_token": "<BOS>", "eos_token": "<EOS>"}

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "It's <the> & \"weather\"\u2028 中文", "parameters": {
    "type": "object", "required": ["city"], "properties": {"zeta": {"type": "number", "minimum": 1.0, "maximum": 1.5e300, "default": -0.0, "multipleOf": 1e-7},
                                                           "city": {"type": "string", "enum": [None, True, False, 12345678901234567890123, {}, []]}, "items": {"type": "array", "items": {"type": "integer"}}}}}},
         {"type": "function", "function": {"name": "now", "parameters": {}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"zeta\": 2.0, \"city\": \"Oslo \\u00e9 \\n\", \"a\": [1, 1e5, {\"b\": null}]}"}}
EMPTY = {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}}
TEXTS = ["", " ", "hi", "2+2?", "line\nline\r\nend\n", "  lead and trail  ", "tab\tand <b>html</b> & 'quotes' \"x\"", "{{ not a tag }} {% if %}", "中文 👩‍👩‍👧‍👦", "\u2028\u00a0x", "a</think>b",
         "<think>\nwhy\n</think>\n\nThe answer is 4.", "</think></think>\n\nx", "a\u0301", "x" * 300, "<tool_response>\n1\n</tool_response>", "None", "\\n \\u0041", "<|im_end|>", "<|eot_id|>"]
S = lambda t: {"role": "system", "content": t}  # noqa: E731
U = lambda t: {"role": "user", "content": t}  # noqa: E731
A = lambda t: {"role": "assistant", "content": t}  # noqa: E731
T = lambda t, i="c1": {"role": "tool", "tool_call_id": i, "content": t}  # noqa: E731
C = lambda t, *calls: {"role": "assistant", "content": t, "tool_calls": list(calls)}  # noqa: E731
TABLE = [[], [U("hi")], [S("be kind"), U("hi")], [S("one"), S("two"), U("hi")], [U("hi"), S("late")], [S("only")], [A("first")], [U("a"), A("b")], [U("a"), A(""), U("c")], [U(""), A("")], [U("a"), U("b")],
         [U("w?"), C(None, CALL), T("rain")], [U("w?"), C("", CALL), T("rain"), A("wet")], [U("w?"), C("look", CALL, EMPTY), T("1"), T("2", "c2"), A("both"), U("so?")], [U("w?"), C(None, EMPTY)],
         [U("q"), A("<think>\nhm\n</think>\n\nr"), U("q2"), A("<think>\nhm\n</think>\n\nr2")], [U("<tool_response>x</tool_response>"), A("r"), U("q")], [U("q"), A("a</think>b</think>c")], [T("alone")],
         [U("q"), C(None, CALL), T("r"), C(None, CALL), T("s"), A("done")], [S(""), U("q")], [U("a "), A(" b "), U(" c ")]]


def conversation(k):
    rnd = random.Random(k)
    m = []
    if k % 3 == 0: m.append(S(rnd.choice(TEXTS)))
    for _ in range(rnd.randrange(1, 4)):
        m.append(U(rnd.choice(TEXTS)))
        if rnd.random() < .7:
            if rnd.random() < .4:
                m.append(C(rnd.choice([None, "", rnd.choice(TEXTS)]), *[CALL, EMPTY][: rnd.randrange(1, 3)]))
                m += [T(rnd.choice(TEXTS), f"c{i}") for i in range(rnd.randrange(1, 3))]
            m.append(A(rnd.choice(TEXTS)))
    if k % 7 == 3: m.append(S("late"))
    if k % 2: m.append({**U(rnd.choice(TEXTS)), "name": "bob"})
    return m


def parsed(messages, null, raw):
    m = json.loads(json.dumps(messages))
    for x in m:
        if x["content"] is None and not null:
            x["content"] = ""
        for call in x.get("tool_calls", []):
            f = call["function"]
            if not raw:
                f["arguments"] = json.loads(f["arguments"]) if f["arguments"] else {}
    return m


def render(template, null, c):
    args = dict(tools=c.get("tools"), documents=None, add_generation_prompt=c["gen"], **NAMES)
    args.update(c.get("args", {}))
    try:
        return template.render(messages=parsed(c["messages"], null, False), **args)
    except Exception as first:
        if str(first).startswith("RAISED:") or not any("tool_calls" in m for m in c["messages"]):
            raise
        try:
            return template.render(messages=parsed(c["messages"], null, True), **args)
        except Exception:
            raise first


for path in sorted(glob.glob(sys.argv[1] + "/*.jinja")):
    text = open(path, encoding="utf-8", newline="").read()
    template = env.from_string(text)
    null = re.search(r"\bcontent['\"]?\]?\s+is\s+(not\s+)?none", text.lower()) is not None
    rows = []
    for k, m in enumerate(TABLE + [conversation(k) for k in range(60)]):
        for gen in (True, False):
            c = {"messages": m, "gen": gen}
            if k % 3 == 1 or any("tool_calls" in x for x in m) and k % 2: c["tools"] = TOOLS
            if k % 5 < 2: c["args"] = {"enable_thinking": k % 5 == 0, "date_string": "1 Jan 2025", "tools_in_user_message": k % 2 == 0}
            try:
                c["out"] = render(template, null, c)
            except Exception as e:
                c["error"] = str(e).removeprefix("RAISED:")
                c["raised"] = str(e).startswith("RAISED:")
            rows.append(c)
    with open(path.removesuffix(".jinja") + ".renders.json", "w") as f:
        f.write("[" + ",\n".join(json.dumps(r, ensure_ascii=True, separators=(",", ":")) for r in rows) + "]\n")
    print(os.path.basename(path), len(rows), sum("error" in r for r in rows))
