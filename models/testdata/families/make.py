"""Makes the reference outputs of small models of every family with transformers.

    python models/testdata/families/make.py      from the repository's root; writes NAME.golden.safetensors beside itself

cases.json has the configs. Weights are the hash of models/dummy with seed 11 (cuda/torchref/reference.py), and biases 32
times that, so that leaving them out shows. A file has, for TOKENS ids and every 6th position of them:

    ids         int32   [T]
    hidden.N    float32 [T/6, C]   the state after N layers, through the final norm
    logits      float32 [T/6, V]
    bf16        float32 [L + 1]    how far PyTorch in bfloat16 is from that: for each hidden.N, then for the logits, over all
                                   positions, as a relative distance. An engine that rounds activations to bfloat16 as well
                                   may be 1.5 times as far.
"""
import importlib.util
import json
import os

import torch
import transformers
from safetensors.torch import save_file

TOKENS, EVERY, BIAS = 96, 6, 32
HERE = os.path.dirname(os.path.abspath(__file__))

spec = importlib.util.spec_from_file_location("reference", os.path.join(HERE, "../../../cuda/torchref/reference.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def main():
    with open(os.path.join(HERE, "cases.json")) as f:
        cases = json.load(f)
    for name, body in cases.items():
        layers, vocab = body["num_hidden_layers"], body["vocab_size"]
        ids = reference.token_ids(TOKENS, vocab)
        model = reference.build(body, layers, "cpu", BIAS)
        t = reference.both(model, torch.tensor(ids), range(1, layers + 1), vocab, TOKENS)
        kept = [f"hidden.{n}" for n in range(1, layers + 1)] + ["logits"]
        out = {key: t[key][::EVERY].contiguous() for key in kept}
        out["ids"] = torch.tensor(ids, dtype=torch.int32)
        out["bf16"] = torch.tensor([reference.distance(t["bf16." + key], t[key]) for key in kept])
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        save_file(out, os.path.join(HERE, name + ".golden.safetensors"), metadata=versions)
        print(name, out["bf16"].tolist(), t["logits"].std().item())


if __name__ == "__main__":
    main()
