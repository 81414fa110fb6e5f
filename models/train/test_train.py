"""Tests of the parts; run with: cd models && python3 -m unittest train.test_train"""

import json
import random
import re
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.torch import load_file

from . import data, judge, model, routers, rows, search, trio
from .decode import decode
from .evaluate import AtLeast, Point, at_share
from .model import Cache, Model
from .tokens import IM_END, PAD, VOCAB

MODELS = Path(__file__).resolve().parent.parent
TOKENIZER = MODELS / "tiny-s" / "tokenizer.json"
GOLDEN = MODELS / "testdata" / "golden"


class Generated(unittest.TestCase):
    def test_pieces_are_the_tokenizer(self):
        encoder, r = data.Encoder(TOKENIZER), random.Random(1)
        for i in range(300):
            ids, _ = encoder.document(r, data.small_talk(r) if i % 10 == 0 else data.problem(r))
            self.assertEqual(ids, encoder.tokenizer.encode(encoder.text(ids)).ids)

    def test_steps_are_true(self):
        r, checked = random.Random(2), 0
        for _ in range(500):
            p = data.problem(r)
            for step in p.steps:
                for chain in re.findall(r"[0-9][0-9+*/ -]*(?: = [0-9][0-9+*/ -]*)+", step):
                    checked += 1
                    self.assertEqual(len({eval(side) for side in chain.split(" = ")}), 1, step)
            self.assertEqual(data.answer_of(p.last), p.answer)
        self.assertGreater(checked, 1500)

    def test_documents_are_whole_and_seeded(self):
        packed = data.pack(TOKENIZER, 3, 32, 768)
        self.assertTrue((packed == data.pack(TOKENIZER, 3, 32, 768)).all())
        ids = packed & (data.LEARN - 1)
        for row in ids:
            kept = row[row != PAD]
            self.assertEqual(kept[-1], IM_END)
        self.assertGreater((ids != PAD).mean(), .9)


    def test_documents_are_longer_than_the_bounds_need(self):
        encoder, r = data.Encoder(TOKENIZER), random.Random(4)
        drawn = [data.small_talk(r) if i % 4 == 0 else data.problem(r) for i in range(1000)]
        self.assertGreater(min(len(encoder.document(r, p)[0]) for p in drawn), 32)

    def test_packed_parts_are_read_once_they_are_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            packed = data.Packed.create(folder, 40, 256, 32)
            self.assertIsNone(packed.read(32))
            data.pack_part(TOKENIZER, 7, 8, packed, 1)
            self.assertTrue((packed.read(32) == data.pack(TOKENIZER, 7, 8, 256)).all())
            self.assertIsNone(packed.read(0))


def flash_reference(q, k, v, bounds, longest):
    """What model.flash gives, one document after the other."""
    parts = [torch.nn.functional.scaled_dot_product_attention(
        *(t[a:b].transpose(0, 1)[None] for t in (q, k, v)), is_causal=True)[0].transpose(0, 1)
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist()) if a < b]
    return torch.cat(parts)


class Trio(unittest.TestCase):
    def test_documents_end_to_end_are_those_of_the_mask(self):
        torch.manual_seed(1)
        stored = torch.from_numpy(data.pack(TOKENIZER, 5, 4, 768).astype("int32"))
        net = model.Model(model.Config.load(MODELS / "tiny-m" / "config.json"))
        masked = trio.loss_of(net, stored)
        with unittest.mock.patch.object(model, "flash", flash_reference):
            flash = trio.loss_of(net, stored, flash=True)
        self.assertAlmostEqual(flash.item(), masked.item(), places=5)
        bounds = trio.bounds_of(stored & (data.LEARN - 1))
        self.assertEqual(bounds[0], 0)
        self.assertEqual(bounds[-1], stored.numel())
        self.assertEqual(len(set(bounds.tolist())) - 1, trio.documents_of(stored & (data.LEARN - 1)).amax(1).sum())

    def test_a_model_learns_until_the_deadline_or_the_tokens_end(self):
        config = model.Config.load(MODELS / "tiny-s" / "config.json")
        with tempfile.TemporaryDirectory() as folder:
            packed = data.Packed.create(folder, 4, 256, 4)
            data.pack_part(TOKENIZER, 7, 4, packed, 0)
            one, lines = 2 * 256, []
            trainer = trio.Trainer(config, trio.Stream(packed, "cpu"), trio.Recipe(0, 1e-2, rows=2, warmup=2), deadline=0,
                                   device=torch.device("cpu"), seed=1, compiled=False, log=lines.append)
            made = []
            for tokens, deadline, wanted in ((12 * one, float("inf"), "all tokens read"), (10**12, 0, "the time was up"),
                                             (12 * one, float("inf"), "all tokens read")):
                made.append(trainer.fit(tokens, deadline))
                self.assertTrue(lines[-1].startswith(wanted), lines)
                if tokens == 12 * one:
                    self.assertIn("step 12,", lines[-2])
                    self.assertLess(float(re.search(r"loss ([0-9.]+)", lines[-2])[1]), 6.5)
            self.assertEqual([read for _, read in made], [12 * one, one, 12 * one])
            # Every fit is from the beginning, and gives a model that later ones do not change.
            first, cut, again = ([p.flatten().tolist() for p in m.parameters()] for m, _ in made)
            self.assertEqual(first, again)
            self.assertNotEqual(first, cut)

    def test_rate_rises_and_comes_to_nothing(self):
        recipe = trio.RECIPES["tiny-s"]
        self.assertLess(trio.rate(0, 0, recipe), .01)
        self.assertEqual(trio.rate(500, 0, recipe), 1)
        self.assertEqual(trio.rate(500, 1, recipe), 0)


class Search(unittest.TestCase):
    GOAL = trio.RECIPES["tiny-s"].goal
    MOST = trio.RECIPES["tiny-s"].tokens

    def run_search(self, curve, deadline=float("inf"), speed=0.0):
        """Searches on a curve of accuracy over million tokens, with a clock that training alone moves."""
        self.now = 0.0

        def fit(tokens, until):
            read = tokens // 49152 * 49152
            self.now += read / 1e6 * speed
            return read, read
        return search.search(fit, lambda read: curve(read / 1e6), self.GOAL, self.MOST, deadline, lambda line: None,
                             lambda: self.now)

    def test_the_goal_is_found_wherever_it_is(self):
        for half in (5, 12, 20, 30, 36, 45, 60, 90, 120):
            for steep in (2, 6, 15):
                model, tries = self.run_search(lambda m: .99 / (1 + (half / max(m, 1e-9)) ** steep))
                best = [t for t in tries if t.tokens == model]
                self.assertLessEqual(abs(best[0].accuracy - .42), .03, (half, steep, tries))
                self.assertLessEqual(len(tries), 8, (half, steep, tries))

    def test_a_goal_out_of_reach_ends(self):
        for curve, wanted in ((lambda m: .2, self.MOST), (lambda m: .9, 0), (lambda m: .1 if m < 30 else .8, 30e6)):
            model, tries = self.run_search(curve)
            self.assertLessEqual(len(tries), search.MOST_TRIES)
            nearest = min(abs(t.accuracy - .42) for t in tries)
            self.assertEqual(next(abs(t.accuracy - .42) for t in tries if t.tokens == model), nearest)
            if wanted:
                self.assertTrue(any(abs(t.tokens / wanted - 1) < .05 for t in tries), tries)

    def test_no_try_begins_that_would_end_too_late(self):
        _, tries = self.run_search(lambda m: .3 if m < 40 else .6, deadline=30, speed=.3)
        self.assertEqual(len(tries), 2)  # 36 and 54 million: 27 s
        self.assertLessEqual(self.now, 30)
        _, tries = self.run_search(lambda m: 0, deadline=1, speed=.3)
        self.assertEqual(len(tries), 1)

    def test_validation_problems_are_seeded_and_unknown(self):
        asked = [p for p, _ in data.draw(TOKENIZER, 5, 3, frozenset())]
        encoder = data.Encoder(TOKENIZER)
        known = frozenset(encoder.text(p).split("user\n")[1].split("<|im_end|>")[0] for p in asked)
        self.assertFalse([p for p, _ in data.draw(TOKENIZER, 5, 5, known) if p in asked])
        measure = search.Validation(5, 8, known).accuracy(MODELS / "tiny-m")
        self.assertGreater(measure(Model.load(MODELS / "tiny-m")), .7)


class Networks(unittest.TestCase):
    def test_logits_are_those_of_transformers(self):
        for name in ("tiny-s", "tiny-m", "tiny-l"):
            golden, model = load_file(GOLDEN / f"{name}.golden.safetensors"), Model.load(MODELS / name)
            ids = golden["ids0"][None].long()
            with torch.no_grad():
                whole = model(ids, torch.zeros_like(ids))[0, :, :VOCAB]
                torch.testing.assert_close(whole, golden["logits0"], atol=2e-4, rtol=0)
                cache = Cache(model, torch.tensor([3]), 200)
                padded = torch.cat((torch.full((1, 3), PAD), ids), 1)
                parts = [cache.step(padded[:, :20])] + [cache.step(padded[:, i:i + 1]) for i in range(20, padded.shape[1])]
                torch.testing.assert_close(model.head(torch.cat(parts, 1))[0, 3:, :VOCAB], whole, atol=2e-4, rtol=0)

    def test_documents_of_a_row_do_not_see_each_other(self):
        model = Model.load(MODELS / "tiny-s")
        a, b = torch.randint(0, VOCAB, (1, 30)), torch.randint(0, VOCAB, (1, 20))
        documents = torch.tensor([[0] * 30 + [1] * 20])
        with torch.no_grad():
            together = model(torch.cat((a, b), 1), documents)
            torch.testing.assert_close(together[:, 30:], model(b, torch.zeros_like(b)), atol=1e-4, rtol=0)

    def test_texts_are_those_of_transformers(self):
        wanted = json.loads((GOLDEN / "tiny-s.greedy.json").read_text())[:4]
        got = decode(Model.load(MODELS / "tiny-s"), [w["prompt_ids"] for w in wanted], limit=120).tokens
        for w, ids in zip(wanted, got):
            self.assertEqual(ids, w["output_ids"][:len(ids)])

    def test_always_and_never_routing(self):
        small, large = Model.load(MODELS / "tiny-s"), Model.load(MODELS / "tiny-m")
        encoder = data.Encoder(TOKENIZER)
        prompts = [encoder.prompt(q) for q in ("Add these numbers: 74, 75, 51.", "Compute 25 + 73 * 10", "Hello")]
        each = lambda n: decode(small, prompts, large, AtLeast(lambda z, h, y: torch.full(y.shape, .5), torch.full((3,), n)), 80)
        self.assertEqual(each(.4).tokens, decode(large, prompts, limit=80).tokens)
        self.assertEqual(each(.4).share(), 1)
        self.assertEqual(each(.6).tokens, decode(small, prompts, limit=80).tokens)
        self.assertEqual(each(.6).share(), 0)


class Routers(unittest.TestCase):
    def test_rows_are_those_of_the_decoder(self):
        small, large, encoder = Model.load(MODELS / "tiny-s"), Model.load(MODELS / "tiny-m"), data.Encoder(TOKENIZER)
        prompt = encoder.prompt("Add these numbers: 74, 75, 51.")
        answer = decode(small, [prompt], limit=80).tokens[0]
        got = rows.collect(small, large, [(prompt, answer), (prompt[:9], answer[:5])])
        got = got.pick(slice(5, None))
        self.assertEqual(got.candidate.tolist(), answer)
        self.assertTrue(got.small_right.all())
        self.assertTrue((got.top[:, :-1] >= got.top[:, 1:]).all())

    def test_judge_asks_for_the_number(self):
        large, encoder = Model.load(MODELS / "tiny-l"), data.Encoder(TOKENIZER)
        prompt = encoder.prompt("Add these numbers: 74, 75, 51.")
        answer = encoder.answer(data.Problem("", ["74 + 75 = 149.", "149 + 51 = 200."], "The answer is 200.", 200))
        words = [encoder.text([i]) for i in answer]
        # A wrong digit of a sum, which is harm, and a unit after the answer, which is none.
        places = [(words.index("9"), "8"), (len(answer) - 2, " apples")]
        index = lambda w: encoder.words(w)[0]
        made = SimpleNamespace(harm=torch.zeros(3, dtype=torch.bool), differs=torch.tensor([True, False, True]),
                               text=torch.zeros(3, dtype=torch.long), at=torch.tensor([places[0][0], 0, places[1][0]]),
                               candidate=torch.tensor([index(places[0][1]), 0, index(places[1][1])]),
                               wanted=torch.tensor([answer[places[0][0]], 0, answer[-2]]))
        for trusted in (True, False):
            got = judge.Judge(large, encoder).label(made, [(prompt, answer)], trusted).harm.tolist()
            self.assertEqual(got, [True, False, False])

    def test_a_share_between_measured_points(self):
        points = [Point("r2r", .2, .9, .04), Point("r2r", .1, .96, .06)]
        for share, cut, accuracy in ((.05, .15, .93), (.01, .2, .9), (.5, .1, .96)):
            got = at_share(points, share)
            self.assertAlmostEqual(got[0], cut)
            self.assertAlmostEqual(got[1], accuracy)
        self.assertEqual(at_share(points[:1], .04), (.2, .9))

    def test_absorbing_is_standardizing(self):
        torch.manual_seed(1)
        layer, x = torch.nn.Linear(5, 3), torch.randn(100, 5) * 7 + 3
        wanted = layer((x - x.mean(0)) / (x.std(0, correction=0) + 1e-3))
        routers.absorb(layer, slice(None), x)
        torch.testing.assert_close(layer(x), wanted, atol=1e-4, rtol=1e-4)

    def test_cut_routes_the_share(self):
        score = torch.from_numpy(np.random.default_rng(1).random(10000)).float()
        cut = routers.cut_at(score, torch.ones(10000), .05)
        self.assertAlmostEqual((score >= cut).float().mean().item(), .05, places=3)


if __name__ == "__main__":
    unittest.main()
