"""Makes the reference outputs of the tiny trio with transformers in float32.

Usage, from the repository's root: python models/testdata/golden/make.py OUT

For each model OUT gets
  NAME.golden.safetensors  ids{0,1} int32 [T]; logits{0,1} float32 [T, 749];
                           hidden0.{layer} float32, every 8th position of
                           output_hidden_states (embedding, each layer; the last
                           one is after the final norm)
  NAME.greedy.json         prompt ids, greedy output ids (at most 300) and text of
                           the first ten problems
"""

import json
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

VOCAB = 749
POSITIONS = 96


def make(name, problems, out):
    tok = AutoTokenizer.from_pretrained(f"models/{name}")
    model = AutoModelForCausalLM.from_pretrained(f"models/{name}", dtype=torch.float32).eval()
    texts, tensors = [], {}
    for i, problem in enumerate(problems):
        chat = [{"role": "user", "content": problem["question"]}]
        ids = tok.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
        full = model.generate(ids, max_new_tokens=300, do_sample=False)
        answer = full[0, ids.shape[1]:]
        texts.append({"question": problem["question"], "prompt_ids": ids[0].tolist(),
                      "output_ids": answer.tolist(), "text": tok.decode(answer)})
        if i < 2:
            with torch.no_grad():
                o = model(full[:, :POSITIONS], output_hidden_states=True)
            tensors[f"ids{i}"] = full[0, :POSITIONS].to(torch.int32).contiguous()
            tensors[f"logits{i}"] = o.logits[0, :, :VOCAB].float().contiguous()
            if i == 0:
                for layer, h in enumerate(o.hidden_states):
                    tensors[f"hidden0.{layer}"] = h[0, ::8].float().contiguous()
    save_file(tensors, f"{out}/{name}.golden.safetensors")
    with open(f"{out}/{name}.greedy.json", "w") as f:
        json.dump(texts, f, ensure_ascii=False, indent=1)


def main():
    out = sys.argv[1]
    with open("models/eval/problems.jsonl") as f:
        problems = [json.loads(line) for line in f][:10]
    for name in ("tiny-s", "tiny-m", "tiny-l"):
        make(name, problems, out)


if __name__ == "__main__":
    main()
