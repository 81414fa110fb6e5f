"""Reference activations of dummy models from transformers, in float32 and in bfloat16.

    python3 reference.py DIR [CASE…]      from the repository's root; DIR gets CASE.safetensors of each case

cases.json lists models, cut after some layers: of the catalogue, or with a config and a vocabulary of their own. Weights
are the hash of models/dummy (seed 11), made here with PyTorch and compared with models/dummy/reference.py. A file has, for
the last TOKENS of the ids (a case's "context" says how many stand before them):

    ids                int32   [context + T]
    hidden.N           float32 [T, C]   the state after N layers, through the final norm: what a model that is cut after
                                        N layers hands to its output head
    logits, entropy    float32 [T, V], [T]   of the last N; V is the real vocabulary, entropy in nats
    bf16.…             the same computed in bfloat16
"""
import importlib.util
import json
import os
import sys
import tempfile
import time

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEED, TOKENS = 11, 64
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

spec = importlib.util.spec_from_file_location("dummy", os.path.join(ROOT, "models/dummy/reference.py"))
dummy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dummy)


def signed(x):
    """The 64-bit pattern of x as a signed number: PyTorch's int64 wraps around as uint64 does."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


def shift(x, n):
    """Logical shift to the right."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def mix(x):
    x = (x ^ shift(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shift(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ shift(x, 31)


@torch.no_grad()
def fill(name, weight, bias=1):
    """Writes the recipe's values, which bfloat16 holds exactly, into a float32 weight; biases times a power of two."""
    key, scale, offset = dummy.recipe(SEED, name, list(weight.shape))
    flat, step = weight.view(-1), 1 << 26
    for first in range(0, flat.numel(), step):
        n = min(step, flat.numel() - first)
        i = torch.arange(first + 1, first + n + 1, dtype=torch.int64, device=weight.device)
        u = (mix(i * signed(dummy.GOLDEN) + signed(key)) >> 48).to(torch.float32) / 32768.0
        flat[first : first + n] = (u * scale + offset).to(torch.bfloat16).to(torch.float32)
    for i in {0, 1, flat.numel() // 2, flat.numel() - 1}:
        want = dummy.element(key, scale, offset, i)
        got = flat[i].to(torch.bfloat16).view(torch.int16).item() & 0xFFFF
        assert got == want, f"{name}[{i}] is {got:04x}, the plain recipe gives {want:04x}"
    if name.endswith(".bias"):
        flat *= bias


def build(body, layers, device, bias=1):
    body = dict(body, num_hidden_layers=layers, torch_dtype="float32", dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(body, f)
        config = AutoConfig.from_pretrained(folder)
    rope, scaling = config.rope_parameters, body.get("rope_scaling") or {}
    assert float(rope["rope_theta"]) == float(body["rope_theta"]), rope
    assert rope["rope_type"] == scaling.get("rope_type", "default") and all(rope[k] == v for k, v in scaling.items()), rope
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert head == body.get("head_dim", head) and config.num_hidden_layers == layers
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)
    model = model.float().eval()
    for name, weight in model.named_parameters():
        fill(name, weight.data, bias)
    assert model.get_input_embeddings().weight.data_ptr() == model.lm_head.weight.data_ptr() or not body["tie_word_embeddings"]
    return model


@torch.no_grad()
def run(model, ids, at, vocab, last):
    """States and logits of the last ids."""
    states, hooks = {}, []
    for n, layer in enumerate(model.model.layers, 1):
        def keep(_module, _inputs, output, n=n):
            state = output[0] if isinstance(output, tuple) else output
            states[n] = state.reshape(len(ids), -1)[-last:]
        hooks.append(layer.register_forward_hook(keep))
    logits = model(ids[None], use_cache=False, logits_to_keep=last).logits[0, :, :vocab]
    for h in hooks:
        h.remove()
    out = {f"hidden.{n}": model.model.norm(states[n][None])[0].float() for n in at}
    p = torch.log_softmax(logits.double(), -1)
    out["logits"], out["entropy"] = logits.float(), -(p.exp() * p).sum(-1).float()
    return {name: t.cpu().contiguous() for name, t in out.items()}


@torch.no_grad()
def both(model, ids, at, vocab, last):
    """What run gives in float32, and in bfloat16 with names that begin with bf16; the model stays in bfloat16."""
    tensors = run(model, ids, at, vocab, last)
    # Rotary frequencies stay float32, as they do when a model is loaded in bfloat16.
    frequencies = {m: m.inv_freq.clone() for m in model.modules() if hasattr(m, "inv_freq")}
    model = model.to(torch.bfloat16)
    for module, f in frequencies.items():
        module.inv_freq = f
    tensors.update({"bf16." + name: t for name, t in run(model, ids, at, vocab, last).items()})
    return tensors


def distance(a, b):
    """The relative distance of a from b, over all elements."""
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm()).item()


def token_ids(n, vocab):
    return [(i * i * 977 + i * 31 + 5) % vocab for i in range(n)]


def main(folder, wanted):
    import yaml

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with open(os.path.join(ROOT, "models/catalogue/catalogue.yaml")) as f:
        catalogue = yaml.safe_load(f)["models"]
    with open(os.path.join(HERE, "cases.json")) as f:
        cases = json.load(f)
    for case in cases:
        if wanted and case["model"] not in wanted:
            continue
        start = time.time()
        if "config" in case:
            body, vocab = case["config"], case["vocab"]
        else:
            body, vocab = catalogue[case["model"]]["config"], catalogue[case["model"]]["real_vocab"]
        ids = token_ids(case.get("context", 0) + TOKENS, vocab)
        model = build(body, case["layers"], device)
        tensors = {"ids": torch.tensor(ids, dtype=torch.int32)}
        tensors.update(both(model, torch.tensor(ids, device=device), case["at"], vocab, TOKENS))
        save_file(tensors, os.path.join(folder, case["model"] + ".safetensors"))
        print(f"{case['model']}: {case['layers']} layers, {len(ids)} positions, bfloat16 is "
              f"{distance(tensors['bf16.logits'], tensors['logits']):.2g} from float32 in the logits, {time.time() - start:.1f} s", flush=True)
        del model
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
