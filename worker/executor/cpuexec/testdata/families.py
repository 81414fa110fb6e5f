"""Writes the goldens of the model families: for each a random checkpoint of two layers, and what the reference
implementation computes with it in float32.

    pip install torch transformers safetensors
    python families.py OUT
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

out = sys.argv[1]
SIZES = dict(vocab_size=67, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
SCALED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def theta(x):
    return {"rope_type": "default", "rope_theta": x}


FAMILIES = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True, rope_parameters=theta(1e4)), torch.bfloat16),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=False, rope_parameters=theta(1e4)), torch.bfloat16),
    "llama2": (LlamaForCausalLM, LlamaConfig(**{**SIZES, "num_key_value_heads": 6}, rope_parameters=theta(1e4)), torch.float16),
    "llama3": (LlamaForCausalLM, LlamaConfig(**SIZES, head_dim=16, tie_word_embeddings=True, rope_parameters=SCALED), torch.float32),
}

for name, (kind, config, dtype) in FAMILIES.items():
    torch.manual_seed(7)
    config._attn_implementation = "eager"
    model = kind(config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.normal_(0, 0.25)
            if "norm" in key:
                p.add_(1)
            p.copy_(p.to(dtype))  # as the file has it; the frequencies stay as they are
    model.eval()
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    ids = torch.tensor([[(i * i * 7 + i) % config.vocab_size for i in range(90)]])
    with torch.no_grad():
        r = model(ids, output_hidden_states=True)
    weights = {k: v.to(dtype).contiguous() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    golden = {"ids": ids[0].to(torch.int32), "logits": r.logits[0][::6].contiguous()}
    for i, h in enumerate(r.hidden_states):
        golden[f"hidden.{i}"] = h[0][::15].contiguous()
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    body = json.loads(config.to_json_string(use_diff=False))
    keep = ["architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "rope_parameters", "attention_bias", "mlp_bias",
            "use_sliding_window", "layer_types", "bos_token_id", "eos_token_id"]
    body["architectures"] = [kind.__name__]
    body = {k: body[k] for k in keep if k in body and body[k] is not None}
    if name == "llama2":  # the old form
        del body["rope_parameters"]
    body["torch_dtype"] = str(dtype).removeprefix("torch.")
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(body, f, indent=1)
        f.write("\n")
    print(name, r.logits.std().item())
