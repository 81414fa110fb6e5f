"""R2R's labels: the large model continues both tokens, and a judge says whether the difference matters.

A sentence here is a line: a step of the solution or the answer. Two of them mean
the same if they have the same numbers in whatever order, which for arithmetic needs
no model. The result alone is not enough: a line too many, such as adding nothing,
comes to the same number, and then the small model goes on from there.
"""

import re

import torch

from .decode import decode
from .tokens import IM_END, VOCAB

# Tokens after which a continuation is cut off; no step is near as long.
LIMIT = 64
# Places that are judged at most; a small model that knows nothing differs everywhere.
MOST = 200_000


class Line:
    """Ends continuations at the end of a line, once something was counted since their first token (see decode)."""

    def __init__(self, judge, first):
        self.judge = judge
        self.counted = judge.digit[first]

    def __call__(self, y, rows):
        ended = self.judge.newline[y] & self.counted[rows]
        self.counted[rows] |= self.judge.digit[y]
        return ended


class Judge:
    def __init__(self, large, encoder, chunk=None):
        """chunk bounds the continuations that are written at a time."""
        device = large.inverse.device
        self.large, self.encoder = large, encoder
        self.chunk = chunk or (4096 if device.type == "cuda" else 256)
        words = [encoder.text([i]) for i in range(VOCAB)]
        self.digit = torch.tensor([any(c.isdigit() for c in w) for w in words], device=device)
        self.newline = torch.tensor(["\n" in w for w in words], device=device)
        self.breaks = {i for i, w in enumerate(words) if "\n" in w}
        self.counts = {i for i, w in enumerate(words) if any(c.isdigit() for c in w)}

    def meaning(self, line):
        """What a line (ids) says: its numbers, sorted, or the whole line if it has none."""
        text = self.encoder.text(line)
        return sorted(re.findall("[0-9]+", text)) or text

    def line_of(self, answer, at):
        """The line around or, from a break on, after a place: where it begins and ends in the answer."""
        begin = max((i + 1 for i in range(at) if answer[i] in self.breaks), default=0)
        counted = False
        for end in range(at, len(answer)):
            if end > at and counted and answer[end] in self.breaks:
                return begin, end + 1
            counted |= answer[end] in self.counts
        return begin, len(answer)

    def continued(self, prefixes, tokens):
        """What the large model writes after each prefix and token, up to the end of the line."""
        out = [[] for _ in tokens]
        open_ = [i for i, t in enumerate(tokens) if t != IM_END]
        if open_:
            first = torch.tensor([tokens[i] for i in open_], device=self.digit.device)
            texts = decode(self.large, [prefixes[i] + [tokens[i]] for i in open_], limit=LIMIT, chunk=self.chunk,
                           ends=Line(self, first))
            for i, written in zip(open_, texts.tokens):
                out[i] = written
        return out

    def label(self, rows, texts, trusted=True, most=MOST):
        """Sets rows.harm: whether the small model's token leads to another line than the large model's would.

        Beyond most places, evenly over the rows, the label that rows have is kept. rows are of these texts.
        If they are trusted, where the large model's token is the text's the text is its continuation too.
        """
        differs = rows.differs.nonzero()[:, 0]
        if len(differs) > most:
            differs = differs[torch.linspace(0, len(differs) - 1, most, dtype=torch.double).long().to(differs.device)]
        places = list(zip(*(getattr(rows, f)[differs].tolist() for f in ("text", "at", "candidate", "wanted"))))
        prefixes = [texts[t][0] + texts[t][1][:at] for t, at, _, _ in places]
        small = self.continued(prefixes, [s for _, _, s, _ in places])
        open_ = [i for i, (t, at, _, w) in enumerate(places) if not trusted or texts[t][1][at] != w]
        own = dict(zip(open_, self.continued([prefixes[i] for i in open_], [places[i][3] for i in open_])))
        harm = []
        for i, (t, at, s, w) in enumerate(places):
            answer = texts[t][1]
            begin, end = self.line_of(answer, at)
            large = [w] + own[i] if i in own else answer[at:end]
            harm.append(self.meaning(answer[begin:at] + [s] + small[i]) != self.meaning(answer[begin:at] + large))
        rows.harm = rows.harm & rows.differs
        rows.harm[differs] = torch.tensor(harm, dtype=torch.bool, device=differs.device)
        return rows
