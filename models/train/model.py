"""The Qwen3 architecture in plain PyTorch, with the tensor names of Hugging Face.

A model has two ways to run. forward reads whole rows, for training and for
teacher forcing. A Cache lets step read a few more tokens of every row, for
decoding. Both give the same numbers.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


@dataclass(frozen=True)
class Config:
    """The part of config.json that the computation needs."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 64
    vocab_size: int = 1024
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    initializer_range: float = 0.02

    @classmethod
    def load(cls, path):
        raw = json.loads(Path(path).read_text())
        raw["rope_theta"] = raw.get("rope_parameters", raw)["rope_theta"]
        return cls(**{k: raw[k] for k in cls.__dataclass_fields__ if k in raw})


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * y).to(x.dtype)


def flash(q, k, v, bounds, longest):
    """Causal attention within documents that lie end to end; q, k and v are [N, heads, head_dim] in half precision."""
    return torch.ops.aten._flash_attention_forward(q, k, v, bounds, bounds, longest, longest, 0.0, True, False)[0]


def rotate(x, cos, sin):
    """Turns the two halves of every head by the angle of its position."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, q, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(q, c.hidden_size, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x, cos, sin, mask, store=None):
        """mask is boolean, or the bounds of documents (see flash), which then do not reach over rows.

        store, if any, keeps the new keys and values and returns all of the row's.
        """
        c = self.c
        split = lambda t, heads: t.unflatten(-1, (heads, c.head_dim))
        q = rotate(self.q_norm(split(self.q_proj(x), c.num_attention_heads)), cos, sin).transpose(1, 2)
        k = rotate(self.k_norm(split(self.k_proj(x), c.num_key_value_heads)), cos, sin).transpose(1, 2)
        v = split(self.v_proj(x), c.num_key_value_heads).transpose(1, 2)
        if store is not None:
            k, v = store(k, v)
        group = c.num_attention_heads // c.num_key_value_heads
        if q.shape[2] == 1:
            # One new token: the heads of a group are the queries of one call, and no key is copied.
            out = F.scaled_dot_product_attention(q.unflatten(1, (-1, group))[:, :, :, 0], k, v, attn_mask=mask)
            return self.o_proj(out.flatten(1)[:, None])
        # Repeated rather than enable_gqa: every SDPA kernel takes this with a mask.
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if mask.dim() == 1:
            flat = lambda t: t.transpose(1, 2).flatten(0, 1).contiguous()
            out = flash(flat(q), flat(k), flat(v), mask, q.shape[2])
            return self.o_proj(out.reshape(x.shape[0], x.shape[1], -1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, cos, sin, mask, store=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, store)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Model(nn.Module):
    """Qwen3ForCausalLM with tied embeddings."""

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = Decoder(c)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=c.initializer_range)
        inverse = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float32) / c.head_dim)
        self.register_buffer("inverse", inverse, persistent=False)

    @classmethod
    def load(cls, folder, device="cpu"):
        """Reads a Hugging Face folder; the weights are widened to float32."""
        m = cls(Config.load(Path(folder) / "config.json"))
        weights = {k: v.float() for k, v in load_file(Path(folder) / "model.safetensors").items()}
        weights.pop("lm_head.weight", None)
        m.load_state_dict(weights)
        return m.to(device).eval()

    def save(self, folder, like):
        """Writes a Hugging Face folder in bf16, with tokenizer and configuration as in the folder like."""
        folder, like = Path(folder), Path(like)
        folder.mkdir(parents=True, exist_ok=True)
        for f in like.iterdir():
            if f.is_file() and f.name != "model.safetensors":
                shutil.copyfile(f, folder / f.name)
        weights = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    def angles(self, positions):
        a = positions.float()[..., None, None] * self.inverse
        return a.cos(), a.sin()

    def hidden(self, ids, mask, positions, stores=None):
        """The vectors after the final norm, which are what the output head reads."""
        cos, sin = self.angles(positions)
        x = self.model.embed_tokens(ids)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, mask, stores[i] if stores else None)
        return self.model.norm(x)

    def head(self, h):
        return F.linear(h, self.model.embed_tokens.weight)

    def hidden_of(self, ids, documents):
        """Hidden vectors [B, T, H] of packed rows; a token sees its own document alone."""
        # Rotary angles are relative and documents do not see each other, so that
        # positions need not start anew with each.
        return self.hidden(ids, same_document(documents), torch.arange(ids.shape[1], device=ids.device)[None])

    def forward(self, ids, documents):
        """Logits [B, T, vocab_size] of packed rows."""
        return self.head(self.hidden_of(ids, documents))


def same_document(documents):
    """The causal mask [B, 1, T, T] of rows whose documents are numbered."""
    t = documents.shape[1]
    causal = torch.ones(t, t, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


class Cache:
    """Keys and values of a batch of left-padded rows; all rows are at the same column."""

    def __init__(self, model, pad, room):
        """pad [B] counts the padding before each row; room bounds the columns."""
        c = model.config
        dtype = model.model.norm.weight.dtype
        shape = (c.num_hidden_layers, len(pad), c.num_key_value_heads, room, c.head_dim)
        self.k = torch.zeros(shape, device=pad.device, dtype=dtype)
        self.v = torch.zeros(shape, device=pad.device, dtype=dtype)
        self.model, self.pad, self.end = model, pad, 0

    def step(self, ids):
        """Reads ids [B, n], n further columns, and returns hidden vectors [B, n, H]."""
        begin, self.end = self.end, self.end + ids.shape[1]
        columns = torch.arange(self.end, device=ids.device)
        seen = (columns[None, None] <= columns[None, begin:, None]) & (columns >= self.pad[:, None])[:, None]
        # A padded position sees itself, so that its softmax is not empty.
        seen |= columns[None, None] == columns[None, begin:, None]
        positions = (columns[None, begin:] - self.pad[:, None]).clamp_min(0)

        def store(i):
            def put(k, v):
                self.k[i, :, :, begin:self.end], self.v[i, :, :, begin:self.end] = k, v
                return self.k[i, :, :, :self.end], self.v[i, :, :, :self.end]
            return put

        return self.model.hidden(ids, seen[:, None], positions, [store(i) for i in range(len(self.k))])

    def keep(self, rows):
        """Drops all rows but these (indices)."""
        self.k, self.v, self.pad = self.k[:, rows], self.v[:, rows], self.pad[rows]
