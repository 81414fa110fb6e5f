// The official Node client against a running server: TRCTL_URL is its address.
//
//   cd test/sdk/node && npm ci && TRCTL_URL=http://127.0.0.1:8000 npm test
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const url = (process.env.TRCTL_URL ?? "http://127.0.0.1:8000").replace(/\/+$/, "");
const client = new OpenAI({ baseURL: url + "/v1", apiKey: "not-needed", maxRetries: 0 });
const ask = (content, extra = {}) =>
  client.chat.completions.create({ model: "tiny", messages: [{ role: "user", content }], max_tokens: 600, temperature: 0, ...extra });

test("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("tiny") && names.includes("tiny-l"), names.join());
});

test("a stream equals the whole answer", async () => {
  const whole = await ask("What is 12 * 34?");
  let text = "", usage = null;
  const finishes = [];
  for await (const chunk of await ask("What is 12 * 34?", { stream: true, stream_options: { include_usage: true } })) {
    for (const choice of chunk.choices) {
      text += choice.delta.content ?? "";
      if (choice.finish_reason) finishes.push(choice.finish_reason);
    }
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(finishes, ["stop"]);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper puts choices together", async () => {
  const stream = client.chat.completions.stream({
    model: "tiny", messages: [{ role: "user", content: "What is 2 + 3?" }], max_tokens: 60, temperature: 0.9, seed: 7, n: 3,
  });
  const helped = await stream.finalChatCompletion();
  const whole = await ask("What is 2 + 3?", { max_tokens: 60, temperature: 0.9, seed: 7, n: 3 });
  assert.deepEqual(helped.choices.map((c) => c.message.content), whole.choices.map((c) => c.message.content));
});

test("completions", async () => {
  const whole = await client.completions.create({ model: "tiny-s", prompt: "The answer is", max_tokens: 5, temperature: 0 });
  assert.equal(whole.object, "text_completion");
  assert.equal(whole.usage.completion_tokens, 5);
});

test("errors are typed", async () => {
  await assert.rejects(ask("x", { model: "no-such-model" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(ask("x", { max_tokens: -1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "max_tokens");
    return true;
  });
});

test("breaking out of a stream aborts it, and unknown fields are listed", async () => {
  for (let i = 0; i < 8; i++) {
    for await (const chunk of await ask("What is 12 * 34 + 56 * 78?", { stream: true })) {
      assert.ok(chunk.choices.length === 1);
      break;
    }
  }
  const whole = await ask("What is 2 + 3?", { some_new_field: true });
  assert.match(whole.choices[0].message.content, /The answer is 5/);
  assert.deepEqual(whole.trctl.ignored, ["some_new_field"]);
});
