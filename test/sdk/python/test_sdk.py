"""The official Python client against a running server: TRCTL_URL is its address.

    TRCTL_URL=http://127.0.0.1:8000 python -m unittest discover test/sdk/python
"""

import os
import unittest
from concurrent.futures import ThreadPoolExecutor

from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI

URL = os.environ.get("TRCTL_URL", "http://127.0.0.1:8000").rstrip("/")
QUESTIONS = [f"What is {a} + {b} * {a + b}?" for a, b in zip(range(3, 51, 3), range(5, 53, 3))]


def user(text):
    return [{"role": "user", "content": text}]


class SDK(unittest.TestCase):
    def setUp(self):
        self.client = OpenAI(base_url=URL + "/v1", api_key="not-needed", max_retries=0)

    def tearDown(self):
        self.client.close()

    def answer(self, question, **extra):
        return self.client.chat.completions.create(model="tiny", messages=user(question), max_tokens=600, **extra)

    def test_models(self):
        names = [m.id for m in self.client.models.list()]
        self.assertIn("tiny", names)
        self.assertIn("tiny-s", names)
        self.assertEqual(self.client.models.retrieve("tiny-s").id, "tiny-s")

    def test_chat(self):
        whole = self.answer("What is 2 + 3?", temperature=0)
        self.assertIn("The answer is 5", whole.choices[0].message.content)
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)

    def test_stream_equals_whole(self):
        whole = self.answer("What is 12 * 34?", temperature=0)
        text, finishes, usage, tokens = "", [], None, 0
        for chunk in self.answer("What is 12 * 34?", temperature=0, stream=True, stream_options={"include_usage": True}):
            self.assertIsNone(usage, "a chunk after the usage chunk")
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finishes += [choice.finish_reason] if choice.finish_reason else []
            tokens += "model" in chunk.model_extra.get("trctl", {})
            usage = chunk.usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finishes, ["stop"])
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        # The token that ends the answer has no text: it comes with the finish.
        self.assertEqual(tokens + 1, usage.completion_tokens)

    def test_stream_helper(self):
        """The helper takes the order in which choices begin for their index."""
        with self.client.chat.completions.stream(
            model="tiny", messages=user("What is 2 + 3?"), max_tokens=60, temperature=0.9, seed=7, n=4,
            logprobs=True, top_logprobs=2, stream_options={"include_usage": True},
        ) as stream:
            for _ in stream:
                pass
            helped = stream.get_final_completion()
        whole = self.client.chat.completions.create(
            model="tiny", messages=user("What is 2 + 3?"), max_tokens=60, temperature=0.9, seed=7, n=4)
        self.assertEqual([c.index for c in helped.choices], [0, 1, 2, 3])
        self.assertEqual([c.message.content for c in helped.choices], [c.message.content for c in whole.choices])
        self.assertEqual(sum(len(c.logprobs.content) for c in helped.choices), whole.usage.completion_tokens)
        self.assertEqual(helped.usage.completion_tokens, whole.usage.completion_tokens)

    def test_stop(self):
        """A stop text is cut exactly, wherever the tokens begin and end."""
        text = self.answer("What is 2 + 3?", temperature=0).choices[0].message.content
        for at in range(0, len(text) - 4, 7):
            stop = text[at:at + 5]
            want = text[:text.index(stop)]
            cut = self.answer("What is 2 + 3?", temperature=0, stop=[stop, "never"]).choices[0]
            self.assertEqual((cut.message.content, cut.finish_reason), (want, "stop"), stop)
            stream = self.answer("What is 2 + 3?", temperature=0, stop=stop, stream=True)
            self.assertEqual("".join(c.choices[0].delta.content or "" for c in stream), want, stop)

    def test_echo(self):
        """What evaluations ask for: the log-probabilities of a prompt of ids, and its text."""
        prompt = "The answer is 🦄漢字é\x00."
        ids = self.client.post("../tokenize", cast_to=object, body={"model": "tiny-l", "prompt": prompt})["tokens"]
        self.assertEqual(self.client.post("../detokenize", cast_to=object, body={"model": "tiny-l", "tokens": ids}), {"prompt": prompt})
        scored = self.client.completions.create(
            model="tiny-l", prompt=[ids, ids[:3]], max_tokens=1, temperature=0, logprobs=1, echo=True, seed=1234)
        self.assertEqual([c.index for c in scored.choices], [0, 1])
        for choice, n in zip(scored.choices, (len(ids), 3)):
            p = choice.logprobs
            self.assertEqual([len(p.token_logprobs), len(p.tokens), len(p.top_logprobs), len(p.text_offset)], [n + 1] * 4)
            self.assertIsNone(p.token_logprobs[0])
            self.assertTrue(all(p.tokens[i] in p.top_logprobs[i] for i in range(1, n + 1)))
        self.assertTrue(scored.choices[0].text.startswith(prompt))

    def test_length(self):
        cut = self.client.chat.completions.create(model="tiny", messages=user("What is 2 + 3?"), max_tokens=3, temperature=0)
        self.assertEqual(cut.choices[0].finish_reason, "length")
        self.assertEqual(cut.usage.completion_tokens, 3)

    def test_completions(self):
        request = dict(model="tiny-l", prompt="The answer is", max_tokens=8, temperature=0)
        whole = self.client.completions.create(**request)
        text = "".join(c.text for chunk in self.client.completions.create(stream=True, **request) for c in chunk.choices)
        self.assertEqual(text, whole.choices[0].text)
        self.assertEqual(whole.object, "text_completion")

    def test_logprobs(self):
        whole = self.client.chat.completions.create(
            model="tiny", messages=user("What is 2 + 3?"), max_tokens=4, temperature=0, logprobs=True, top_logprobs=2)
        content = whole.choices[0].logprobs.content
        self.assertEqual(len(content), 4)
        self.assertTrue(all(t.logprob <= 0 and len(t.top_logprobs) == 2 for t in content))

    def test_errors(self):
        with self.assertRaises(NotFoundError) as caught:
            self.client.chat.completions.create(model="no-such-model", messages=user("x"))
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(BadRequestError) as caught:
            self.client.chat.completions.create(model="tiny", messages=user("x"), temperature=7)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(BadRequestError) as caught:
            self.client.chat.completions.create(model="tiny", messages=[])
        self.assertEqual(caught.exception.param, "messages")

    def test_context_length(self):
        """Clients look for the code, or for these words."""
        with self.assertRaises(BadRequestError) as caught:
            self.client.chat.completions.create(model="tiny", messages=user("word " * 9000))
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertRegex(str(caught.exception), r"maximum context length is 4096 tokens, but the prompt has \d{4,}")
        with self.assertRaises(BadRequestError) as caught:
            self.client.chat.completions.create(model="tiny", messages=user("word " * 900), max_tokens=4000)
        self.assertEqual((caught.exception.code, caught.exception.param), ("context_length_exceeded", "max_tokens"))

    def test_too_large(self):
        """A body over the limit gets an answer, not a broken connection."""
        with self.assertRaises(APIStatusError) as caught:
            self.client.chat.completions.create(model="tiny", messages=user("x" * 6_000_000))
        self.assertEqual((caught.exception.status_code, caught.exception.code), (413, "request_too_large"))

    def test_extra_fields(self):
        whole = self.answer("What is 2 + 3?", temperature=0, extra_body={"some_new_field": 1})
        routing = whole.model_extra["trctl"]
        self.assertIn("some_new_field", routing["ignored"])
        self.assertEqual(routing["models"], ["tiny-s", "tiny-l"])
        self.assertEqual(sum(n for _, n in routing["provenance"]), whole.usage.completion_tokens)

    def test_abort(self):
        for _ in range(8):
            stream = self.answer("What is 12 * 34 + 56 * 78?", temperature=0, stream=True)
            next(iter(stream))
            stream.close()
        self.assertIn("The answer is 5", self.answer("What is 2 + 3?", temperature=0).choices[0].message.content)

    def test_determinism(self):
        """16 seeded requests at once give the texts of the same ones one by one."""

        def ask(i):
            whole = self.answer(QUESTIONS[i], temperature=0.8, seed=1000 + i)
            return whole.choices[0].message.content, whole.model_extra["trctl"]["provenance"]

        one_by_one = [ask(i) for i in range(len(QUESTIONS))]
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            at_once = list(pool.map(ask, range(len(QUESTIONS))))
        self.assertEqual(len(QUESTIONS), 16)
        self.assertEqual(at_once, one_by_one)
        written = {"tiny-s": 0, "tiny-l": 0}
        for _, provenance in one_by_one:
            for model, n in provenance:
                written[model] += n
        self.assertGreaterEqual(min(written.values()), 0.05 * sum(written.values()), written)


if __name__ == "__main__":
    unittest.main()
