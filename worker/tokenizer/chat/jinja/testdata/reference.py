"""Writes cases.json: templates with what the reference renderer makes of them, or that it fails.

    pip install jinja2
    python reference.py > cases.json
"""
import json
import sys

import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """The tag that marks answers for training; it changes no text."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError("RAISED:" + message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

VARS = {
    "s": "  Hello, Wörld\n", "e": "", "n": 7, "f": 2.5, "one": 1.0, "big": 123456789012345678901234567890, "t": True, "z": None, "neg": -3,
    "l": [3, 1, 2], "d": {"b": 1, "a": {"x": [1, 2.0, None, True, "é\u2028\"'\\\n\t"]}, "items": "own"}, "w": ["b", "A", "c", "a"],
    "ms": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>\nx\n</think>\n\nyes", "tool_calls": [{"function": {"name": "f", "arguments": {"q": 1}}}]},
           {"role": "tool", "content": None}], "nested": [{"k": 1, "c": [{"k": 2, "c": []}, {"k": 3, "c": [{"k": 4, "c": []}]}]}], "u": "ÄÖ ßtraße İi ŉ ǆ",
    "floats": [0.1, 1e16, 1e-5, 123456789.123, -0.0, 1e22, 5e-324], "emoji": "a👍🏽b",
}
# Each stands for itself; expressions are put into {{ }}.
EXPRESSIONS = """
1 + 2 * 3 - 4 / 2
7 // 2 ~ '|' ~ -7 // 2 ~ '|' ~ 7 // -2 ~ '|' ~ -7 % 3 ~ '|' ~ 7 % -3 ~ '|' ~ 7.5 // 2 ~ '|' ~ -7.5 % 2
2 ** 10 ~ ' ' ~ 2 ** -1 ~ ' ' ~ 2 ** 3 ** 2 ~ ' ' ~ 2.0 ** 0.5 ~ ' ' ~ -2 ** 2
10 / 4 ~ ' ' ~ 10 / 5 ~ ' ' ~ 1 / 3
1 / 0
7 % 0
big * big ~ ' ' ~ big + 1 ~ ' ' ~ big // 7 ~ ' ' ~ -big ~ ' ' ~ big % 1000 ~ ' ' ~ (big > 1)
9223372036854775807 + 1
one
one ~ f ~ n ~ t ~ z
floats
floats[3] * 1.0 ~ ' ' ~ 3.0 * 2 ~ floats[1] * floats[5]
l ~ d ~ ms
(1, 2) ~ (1,) ~ ()
[1, 'a', "b'c", 'd"e', 'f\\'g"h', none, true, 1.5]
'a' 'b' "c"
'\\n\\t\\x41\\u00e9\\'\\"\\\\ \\q'
"tab\there"
s
[s]
s | trim ~ '|'
s.strip() ~ '|' ~ s.lstrip() ~ '|' ~ s.rstrip() ~ '|' ~ s.strip(' H\\n')
s | length ~ ' ' ~ l | length ~ ' ' ~ d | length ~ ' ' ~ e | length ~ ' ' ~ missing | length
n | length
z | length
missing
missing ~ 'x'
missing + 'x'
missing.field
missing['x']
missing[0]
missing()
missing == missing2
missing is defined
missing is undefined
not missing
missing | default('d') ~ e | default('d') ~ e | default('d', true) ~ z | default('d') ~ d.nope | default('n')
missing or 'x'
'a' in missing
1 in l ~ ' ' ~ (5 in l) ~ ' ' ~ ('b' in d) ~ ' ' ~ ('ell' in s) ~ ' ' ~ (5 not in l) ~ ' ' ~ ('' in e)
1 in 'abc'
'a' in z
'a' in 5
n if t else f
n if not t
(n if not t) is defined
'x' if e else 'y' if z else 'w'
t and n ~ ' ' ~ (z or 'q') ~ ' ' ~ (e or z) ~ ' ' ~ (not e) ~ ' ' ~ (not not n)
1 < 2 < 3 ~ ' ' ~ (1 < 3 < 2) ~ ' ' ~ (1 == 1.0) ~ ' ' ~ (t == 1) ~ ' ' ~ ('a' < 'b') ~ ' ' ~ ([1, 2] < [1, 3]) ~ ' ' ~ ('1' == 1)
'a' < 1
z < 1
l[0] ~ l[-1] ~ l[5] ~ s[2] ~ s[-2] ~ d['a']['x'][1] ~ d.a.x[0] ~ l.0
l[1:] ~ l[:-1] ~ l[::-1] ~ l[::2] ~ l[5:] ~ l[-2:] ~ s[2:7] ~ s[::-1] ~ emoji[1:3] ~ emoji[::-1] ~ l[2:0:-1] ~ s[:-1]
(1, 2, 3)[1:]
l[::0]
z[0]
n[0]
d.items
d['items']
d.items() | list
d.keys() | list ~ d.values() | list ~ d.get('b') ~ d.get('q') ~ d.get('q', 'def')
d | items | list
d | dictsort
d | tojson
d | tojson(indent=2)
d | tojson(indent=4, ensure_ascii=true)
d | tojson(separators=(',', ':'), sort_keys=true)
ms | tojson
floats | tojson
[] | tojson(indent=2) ~ {} | tojson(indent=2) ~ [[]] | tojson(indent=1) ~ [{}] | tojson(indent=0)
missing | tojson
{'a': 1, 2: 'b', none: 3, true: 4, 1.5: 5} | tojson
{'a': 1, 'b': [1, {'c': none}]}
{'x': 1}.x ~ {'x': 1}['x'] ~ {1: 'i'}[1] ~ {1: 'i'}[1.0] ~ {1: 'i'}[true]
'</think>' in ms[1].content
ms[1].content.split('</think>')[-1].lstrip('\\n') ~ '|' ~ ms[1].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')
'a,b,,c'.split(',') ~ 'a b  c '.split() ~ ' a b  c '.split(' ') ~ 'a,b,c'.split(',', 1) ~ 'a b c'.split(none, 1) ~ 'abc'.split('x') ~ ''.split() ~ ''.split(',')
'a,b,c'.rsplit(',', 1) ~ 'a,b,c'.rsplit(',')
'abc'.split('')
'a\\nb\\r\\nc\\n\\nd'.splitlines()
'a=b=c'.partition('=') ~ 'a=b=c'.rpartition('=') ~ 'abc'.partition('x')
s.startswith('  H') ~ s.endswith('\\n') ~ s.startswith(('a', '  ')) ~ ''.startswith('')
s.startswith(1)
s.upper() ~ s.lower() ~ u.upper() ~ u.lower() ~ 'hELLO wORLD'.title() ~ 'hELLO wORLD'.capitalize() ~ 'aBc'.swapcase() ~ "it's a dog".title()
'hELLO wORLD-x (y)' | title ~ 'hELLO' | capitalize ~ 'x' | upper ~ n | upper
s.find('l') ~ s.find('z') ~ s.rfind('l') ~ s.count('l') ~ s.index('H')
s.index('zz')
s.replace('l', 'L') ~ s.replace('l', 'L', 1) ~ s | replace('l', '') ~ 'abc'.replace('', '-')
', '.join(w) ~ ''.join([]) ~ ','.join('abc')
','.join(l)
l | join ~ l | join(', ') ~ ms | map(attribute='role') | join('/') ~ w | join('-')
ms | join(',', attribute='role')
w | sort ~ w | sort(reverse=true) ~ w | sort(case_sensitive=true) ~ l | sort ~ ms | sort(attribute='role') | map(attribute='role') | list
w | unique | list ~ [1, 1, 2] | unique | list ~ ['a', 'A'] | unique | list
l | min ~ l | max ~ l | sum ~ w | min ~ [] | max ~ ms | map(attribute='role') | max
l | first ~ l | last ~ [] | first ~ s | first ~ d | first ~ s | last
l | reverse | list ~ 'abc' | reverse ~ d | list ~ 'abc' | list ~ (1, 2) | list
ms | selectattr('role', 'equalto', 'user') | list | length ~ ms | selectattr('tool_calls') | list | length ~ ms | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list
ms | selectattr('tool_calls', 'defined') | list | length ~ l | select('odd') | list ~ l | reject('gt', 1) | list ~ l | select | list ~ [0, 1, ''] | reject | list
ms | map(attribute='content') | list ~ ms | map(attribute='nope', default='-') | list ~ w | map('upper') | list ~ l | map('string') | list ~ w | map('replace', 'a', 'x') | list
ms | map(attribute='tool_calls.0.function.name') | list
l | batch(2) | list ~ l | batch(2, 'x') | list ~ l | slice(2) | list
ms | groupby('role') | map('first') | list
'%s-%d-%.2f-%5s-%-5s|%%' % ('a', 3, 2.5, 'b', 'c')
'%s' % n ~ '%05d' % 42 ~ '%x' % 255
'%s %s' % ('a',)
'%s' | format('x') ~ '%s=%s' | format('a', 1)
'{} {}'.format('a', 1) ~ '{0}{1}{0}'.format('a', 'b') ~ '{x}'.format(x=5) ~ '{{}}'.format()
'ab' * 3 ~ 2 * 'x' ~ 'x' * -1 ~ [1] * 2
'a' + 1
1 + 'a'
'a' - 'b'
l + [4] ~ (1,) + (2,)
l + 'a'
-s
+n ~ -n ~ -f ~ -true
3 | abs ~ -3 | abs ~ -2.5 | abs ~ 2.5 | round ~ 3.5 | round ~ 2.567 | round(2) ~ 2.1 | round(0, 'ceil') ~ 2.9 | round(method='floor') ~ 5 | round ~ 25 | round(-1)
'12' | int ~ 'x' | int ~ 'x' | int(5) ~ '3.7' | int ~ 3.9 | int ~ -3.9 | int ~ z | int ~ true | int ~ ' 7 ' | int ~ 'ff' | int(base=16)
'1.5' | float ~ 'x' | float ~ 3 | float ~ 'x' | float(2.5) ~ ' 1e3 ' | float
n | string ~ z | string ~ one | string ~ l | string
'<a href="x">&\\'' | e ~ '<b>' | escape
'a\\nb\\n\\nc' | indent ~ '|' ~ 'a\\nb' | indent(2, true) ~ '|' ~ 'a\\n\\nb' | indent(2, blank=true) ~ '|' ~ 'a' | indent('>>', first=true) ~ '|' ~ '' | indent
'the quick brown fox' | truncate(10) ~ '|' ~ 'the quick brown fox' | truncate(10, true) ~ '|' ~ 'short' | truncate(10) ~ '|' ~ 'the quick brown fox' | truncate(9, false, '…', 0)
'a b c' | wordcount ~ 'x' | center(5) ~ '|' ~ 'xy'.center(5, '*') ~ 'x'.ljust(3) ~ '|' ~ 'x'.rjust(3) ~ '-5'.zfill(4)
'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') ~ 'abc'.removeprefix('x')
'1a'.isdigit() ~ '12'.isdigit() ~ ''.isdigit() ~ 'ab'.isalpha() ~ 'a1'.isalnum() ~ ' \\n'.isspace() ~ 'AB'.isupper() ~ 'ab1'.islower() ~ '²'.isdigit() ~ '½'.isnumeric() ~ 'a'.isascii()
n is number ~ n is integer ~ f is float ~ t is boolean ~ t is integer ~ t is number ~ s is string ~ l is sequence ~ s is sequence ~ d is mapping ~ l is mapping ~ l is iterable ~ n is iterable ~ z is none ~ n is none ~ d is iterable ~ z is iterable
n is odd ~ n is even ~ n is divisibleby(7) ~ n is divisibleby 2 ~ n is eq 7 ~ n is gt(5) ~ n is in l ~ 3 is in(l) ~ 'ab' is lower ~ 'AB' is upper ~ t is true ~ t is false ~ n is true ~ z is sameas none ~ range is callable ~ s is callable
n is not none ~ n is not defined ~ missing is not defined ~ not n is none
ms[0] is mapping and ms[0].content is string
ms[0].content is defined and ms[0].content is not none
range(3) | list ~ range(1, 3) | list ~ range(5, 0, -2) | list ~ range(0) | list
range(3)[1]
range(1, 2, 0)
dict(a=1, b='x') ~ dict([('k', 1)]) ~ dict({'p': 1}, q=2)
namespace(a=1).a
l.index(1) ~ l.count(1) ~ (1, 2).index(2)
l.append(4)
l.pop()
d.update({'q': 1})
d.pop('b')
s.__class__
d._x
s.nope
s.nope()
'a' ~ 1 ~ none ~ 1.5 ~ [1]
l | nofilter
l is notest
raise_exception('no: ' ~ n)
('a' ~ 'b') | upper ~ 'c'
'a' + 'b' | upper
-1 | abs
n == 7 and s | trim | length > 3
[1, 2, 3][n % 3]
{'a': 1}['a' if t else 'b']
ms[1]['tool_calls'][0]['function']['arguments'] | tojson
(ms[-1].content or 'empty') ~ (ms | last).role
ms[::-1] | map(attribute='role') | list
l | tojson | length
'x' | replace('x', 1)
'a' if 'b'
1_000 + 1 ~ ' ' ~ 1_0.5
1.e5
.5
0x1F
'unclosed
l[
(1
{{ 1 }}
1 2
a.
'é'.upper() ~ 'ß' | upper ~ 'ΑΣ'.lower() ~ 'ﬁ'.upper()
""".strip("\n").split("\n")
TEMPLATES = [
    "", "plain", "a\n", "a\n\n", "\n", "a\r\nb\rc", "{{ s }}\n", "{{ 'x' }}\n\n", "  {{ n }}  ",
    "a\n  {% if t %}\n    b\n  {% endif %}\nc", "a {% if t %} b {% endif %} c", "a\n{%- if t -%}\n b \n{%- endif -%}\n c", "  {%+ if t %}x{% endif +%}\ny", "a\n  {%+ if t +%}\n  x\n  {%+ endif %}\n",
    "x\n  {# c #}\n  y {# d #} z\n{#- e -#}\n w", "{# {% if %} #}a{#- x #}\nb", "  {# lead #}\n  {% if t %}\n  v\n{% endif %}", "{#\n\n#}\nx", "a {#- -#} b", "{# open", "{#-#}x",
    "  {{- n -}}  x", "a\n {{- n }}\n b", "{{ n -}}\n\n  x", "{{\n n\n}}x", "{% if t %}a{% endif %}\n\nb", "\n\n  {% if t %}\n\n  a{% endif %}",
    "{% raw %}{{ x }} {% if %}{% endraw %}", "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\nb", "{%- raw -%}  {{ x }}  {%- endraw -%}  y", "{% raw %}{% endraw %}z", "{% raw %} open", "{%raw%}{%endraw%}",
    "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}", "{% if z %}a{% elif t %}b{% else %}c{% endif %}", "{% if missing %}a{% else %}b{% endif %}", "{% if missing.x %}a{% endif %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {{ x }};{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in missing %}a{% else %}none{% endfor %}", "{% for x in z %}a{% endfor %}", "{% for x in n %}a{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}", "{% for c in 'añ👍' %}{{ c }},{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{% else %}e{% endfor %}", "{% for x in l if x > 9 %}{{ x }}{% else %}e{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for n in nested recursive %}{{ n.k }}({{ loop(n.c) }}){{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "{% for x in l %}{{ loop(x) }}{% endfor %}", "{% for x in l %}{{ loop.nope }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set n.x = 1 %}", "{% set d.x = 1 %}",
    "{% if t %}{% set q = 5 %}{% endif %}{{ q }}", "{% for i in l %}{% set inner = i %}{% endfor %}{{ inner }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = (1, 2, 3) %}", "{% set (a, b) = l[:2] %}{{ b }}{{ a }}",
    "{% set x %}  a {{ n }}\n{% endset %}[{{ x }}]", "{% set x | upper | trim %} ab {% endset %}[{{ x }}]", "{% set x %}{% set y = 2 %}{{ y }}{% endset %}{{ x }}{{ y }}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(c='z', a=0) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}", "{% macro m(a) %}{% if a > 0 %}{{ a }}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in {{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(x) %}{% set q = x %}{% endmacro %}{{ m(1) }}{{ q }}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m() %}  x  {% endmacro %}{{ m() | trim }}{{ m() ~ 1 }}{{ m() | length }}", "{% filter upper %}a{{ 'b' }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% generation %}a{{ n }}{% endgeneration %}b", "a{% generation %}{% set k = 1 %}{% endgeneration %}{{ k }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}", "{% set j = joiner('|') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{{ raise_exception('why') }}", "{% if raise_exception('a' + 'b') %}{% endif %}",
    "{% if %}", "{% endif %}", "{% if t %}", "{% for x in l %}", "{% for in l %}{% endfor %}", "{% set %}", "{% nope %}", "{% break %}", "{{ }}", "{{ n", "{% if t", "{{ 'a }}", "{% set true = 1 %}", "{% else %}", "{% endfor %}", "{% macro %}{% endmacro %}", "{% if t %}{% else %}{% elif t %}{% endif %}",
    "{% for m in ms %}{% if m.role == 'user' %}U{{ m.content }}{% elif m['role'] == 'assistant' %}A{{ m.content.split('</think>')[-1].strip() }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endif %}{% endfor %}",
    "{%- for m in ms -%}\n  {%- set content = m.content if m.content is string else '' -%}\n  {{- content -}}\n{%- endfor -%}", "{{ {'a': {'b': '}}'}}.a.b }}", "{{ '{% if %}' }}{{ '}}' }}", "{{ \"{{\" }}", "a{{'b'}}c{{ 'd' }}\n{{ 'e' }}", "{ { %} }} #} {", "{{ n }}}", "{{{'a':1}}}", "{ {{ n }} }",
    "{% set messages = ms[1:] %}{{ messages | length }}{{ ms | length }}", "{% set l = l[1:] %}{{ l }}", "{%- set ns = namespace(multi=true, last=ms|length - 1) %}\n{%- for m in ms[::-1] %}\n{%- set index = (ms|length - 1) - loop.index0 %}\n{%- if ns.multi and m.role == 'user' %}{%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}\n{%- endfor %}\n{{- ns.last }}{{ ns }}",
    "{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% if 'a' in d and d.a.x is iterable and d.a.x is not string %}y{% endif %}", "{% for a in range(3) %}{% for b in range(2) %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in l %}{% set loop_x = loop.index %}{% for y in [1] %}{{ loop_x }}{{ loop.length }}{% endfor %}{% endfor %}", "{% set x = namespace() %}{% set x.a = 1 %}{{ x.a }}{{ x.b }}", "{% set x = namespace({'a': 1}, b=2) %}{{ x.a }}{{ x.b }}{{ x['a'] }}",
    "{{ 1 if t else 2 if z else 3 }}{{ (1 if z else 2) + 1 }}", "{{ l is defined and l }}{{ l | length > 2 }}", "{%if t%}a{%endif%}{%-if t-%}b{%-endif-%}", "{{n}}{{-n-}}{{n}}", "a  {{- ' b ' -}}  c", "{% set x = 'a' %}\n{{ x }}\n\n{% set y = 'b' %}\n{{ y }}",
    "\t{% if t %}\n\tx\n\t{% endif %}\n", " \u00a0{% if t %}x{% endif %}", "a\n\x0b  {% if t %}b{% endif %}", "{% for i in [1] %}\n  {{ i }}\n{% endfor %}\nend", "{% if t -%}\n\n  x  \n\n{%- endif %}\n\n", "x{% if t %}\n{% endif %}\n{% if t %}\n{% endif %}y",
    "{% if z %}{{ 1 | nofilter }}{{ 1 is notest }}{% endif %}ok", "{% if t %}{{ 1 | nofilter }}{% endif %}", "{% do l %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{{ loop }}", "{{ caller is defined }}", "{{ varargs }}",
]

cases = [{"t": "{{ " + e + " }}"} for e in EXPRESSIONS] + [{"t": t} for t in TEMPLATES]
seen, out = set(), []
for case in cases:
    if case["t"] in seen:
        continue
    seen.add(case["t"])
    try:
        case["out"] = env.from_string(case["t"]).render(**json.loads(json.dumps(VARS)))
    except Exception as e:
        case["error"] = str(e)[7:] if str(e).startswith("RAISED:") else type(e).__name__
        case["raised"] = str(e).startswith("RAISED:")
    out.append(case)
json.dump({"vars": VARS, "cases": out}, sys.stdout, ensure_ascii=True, indent=0)
