"""Trains the small tokenizers below testdata/small, one of each kind that is read, and writes their goldens.

    pip install tokenizers
    python small.py
"""
import os
import subprocess
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.dirname(os.path.abspath(__file__))
source = open(f"{here}/make.py", encoding="utf-8").read()
lists = {}
exec(source[source.index("SCRIPTS ="):source.index("def rand_text")], lists)  # noqa: S102
TEXT = [*lists["SCRIPTS"], *lists["CODE"], *lists["EMOJI"]] * 3
TEXT += ["the answer is twelve and the question was how many eggs are in the other boxes, isn't it?", "1234 567 89 0 2024", "  indented    text\n\n"] * 20
GPT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEP = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def split(*patterns):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
                                   + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def level(patterns, added, normalizer=None, ignore=False, bos=None):
    t = Tokenizer(models.BPE(ignore_merges=ignore))
    t.pre_tokenizer, t.decoder = split(*patterns), decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=520, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens(added)
    if bos:
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=f"{bos}:0 $A:0", special_tokens=[(bos, t.token_to_id(bos))])])
    return t


def characters(normalizer, pre, added, strip=True):
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    train = t.pre_tokenizer is None
    if train:  # words for training only; the file has none
        t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=700, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *BYTES], limit_alphabet=110))
    body = __import__("json").loads(t.to_str())
    body["added_tokens"] = [a for a in body["added_tokens"] if not a["content"].startswith("<0x")]
    if train:
        body["pre_tokenizer"] = None
    t = Tokenizer.from_str(__import__("json").dumps(body))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *([decoders.Strip(" ", 1, 0)] if strip else [])])
    t.add_tokens(added)
    t.post_processor = processors.TemplateProcessing(single="<s>:0 $A:0", special_tokens=[("<s>", 1)])
    return t


def special(text, **flags):
    return AddedToken(text, special=True, **{"normalized": False, **flags})


MARKS = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
EDGES = [special("<end>"), AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
         AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word", single_word=True, normalized=False), AddedToken("e\u0302\u0301!", normalized=True)]
KINDS = {
    "llama3": level([GPT % "{1,3}"], [special("<|begin|>"), special("<|eot|>"), special("<|eot_id|>")], ignore=True, bos="<|begin|>"),
    "deepseek": level(DEEP, [special("<｜begin▁of▁sentence｜>"), AddedToken("<｜User｜>", normalized=True), AddedToken("<｜Assistant｜>", normalized=True),
                             AddedToken("<think>", normalized=True)], normalizer=normalizers.Sequence([])),
    "edges": level([GPT % ""], EDGES, normalizer=normalizers.NFC()),
    "llama2": characters(MARKS, None, [AddedToken("<tool>", normalized=True), AddedToken("<raw>", normalized=False, rstrip=True)]),
    "metaspace": characters(None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=True), [AddedToken("<tool>")], strip=False),
}
for name, t in KINDS.items():
    folder = f"{here}/small/{name}"
    os.makedirs(folder, exist_ok=True)
    t.save(f"{folder}/tokenizer.json", pretty=False)
    subprocess.run([sys.executable, f"{here}/differential.py", folder, "120"], check=True)
