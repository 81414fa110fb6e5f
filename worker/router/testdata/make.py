"""Makes the files of this folder with PyTorch: small random routers in the published
shapes, and what PyTorch computes for random rows (golden.safetensors).

    python make.py

r2r and r2r-normalized are saved twice: as a router's pair of files, and as the dict
that torch.save writes for published ones (.pt). citer is a bare state_dict (.pth). hostile.pt runs a program when
Python loads it.
"""

import json
import os
import struct

import torch
from torch import nn

H, D, BLOCKS, LOGITS, VOCAB, ROWS = 24, 16, 3, 10, 40, 9
HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int32: "I32"}


def write(name, tensors):
    header, body = {}, b""
    for key in sorted(tensors):
        t = tensors[key].detach().contiguous()
        raw = t.view(torch.uint8).numpy().tobytes() if t.dim() else t.numpy().tobytes()
        header[key] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def router(name, kind, tensors, **more):
    write(name + ".safetensors", tensors)
    sidecar = {"format": 1, "kind": kind, "model": "random", "hidden_size": H, "logits_size": LOGITS if kind == "r2r" else 0,
               "normalize_input": False, "source": "testdata/make.py"}
    sidecar.update(more)
    with open(os.path.join(HERE, name + ".json"), "w") as f:
        json.dump(sidecar, f, indent=2)
        f.write("\n")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer_norm = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * D, D), nn.Dropout(0.1))
        self.dim_change = nn.Identity()

    def forward(self, x):
        return self.dim_change(x) + self.mlp(self.layer_norm(x))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.input_projection = nn.Linear(D, D)
        self.output_layer = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 1))

    def forward(self, x):
        x = self.input_projection(x)
        for block in self.blocks:
            x = block(x)
        return self.output_layer(x)


class R2R(nn.Module):
    def __init__(self, normalize):
        super().__init__()
        self.normalize = normalize
        if normalize:
            self.layer_norm_hidden_states = nn.LayerNorm(H)
            self.layer_norm_token = nn.LayerNorm(H)
        self.token_embeddings = nn.Embedding(VOCAB, H)
        self.logits_projection = nn.Linear(LOGITS, H)
        self.combined_projection = nn.Linear(3 * H, D)
        self.backbone = Backbone()

    def forward(self, hidden, token, logits):
        e = self.token_embeddings(token)
        if self.normalize:
            hidden, e = self.layer_norm_hidden_states(hidden), self.layer_norm_token(e)
            logits = torch.softmax(logits, -1)
        return self.backbone(self.combined_projection(torch.cat([hidden, e, self.logits_projection(logits)], -1)))


class Citer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(H, 2 * H), nn.BatchNorm1d(2 * H), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * H, H), nn.Dropout(0.1))
        self.linear = nn.Linear(H, 1)

    def forward(self, hidden):
        return self.linear(self.mlp(hidden))


def scatter(module):
    """Random values where a fresh net has ones and zeros, so that nothing is left out unseen."""
    for name, p in module.named_parameters():
        if p.dim() == 1:
            p.data.normal_(1.0 if name.endswith("weight") else 0.0, 0.3)
        elif name.endswith("mlp.3.weight") or name.endswith("output_layer.1.weight"):
            p.data.mul_(4)  # rows differ more
    return module.eval()


def main():
    torch.manual_seed(20)
    golden = {}
    hidden, logits = torch.randn(ROWS, H) * 2, (torch.randn(ROWS, LOGITS) * 6 + 20).sort(-1, descending=True).values
    token = torch.randint(VOCAB, (ROWS,))
    golden.update({"hidden": hidden, "logits": logits, "token": token.to(torch.int32)})
    for name, normalize in (("r2r", False), ("r2r-normalized", True)):
        net = scatter(R2R(normalize))
        with torch.no_grad():
            net.backbone.output_layer[1].bias -= net(hidden, token, logits).mean()
        golden[name + ".embedding"] = net.token_embeddings.weight
        with torch.no_grad():
            golden[name] = torch.sigmoid(net(hidden, token, logits))[:, 0]
        state = net.state_dict()
        del state["token_embeddings.weight"]
        router(name, "r2r", state, normalize_input=normalize, threshold=0.35)
        torch.save({
            "model_type": "HiddenStatesTokenLMHeadLogitsClassifier",
            "init_args": {"hidden_states_size": 2048, "logits_size": LOGITS, "hidden_dims": [D] * BLOCKS, "expansion_factor": 4,
                          "dropout_rate": 0.1, "pretrained_model_name": "random", "use_position_embedding": False,
                          "normalize_input": normalize, "freeze_lm_head": True, "dtype": torch.float32},
            "common_args": {"threshold": 0.35, "input_type": ["logits", "hidden_states", "token"]},
            "model_specific_args": {},
            "state_dict": state,
        }, os.path.join(HERE, name + ".pt"))
        if not normalize:
            half = {k: v.to(torch.bfloat16) for k, v in state.items()}
            router("r2r-bf16", "r2r", half)
            net.load_state_dict({**half, "token_embeddings.weight": net.token_embeddings.weight})
            with torch.no_grad():
                golden["r2r-bf16"] = torch.sigmoid(net(hidden, token, logits))[:, 0]
            golden["r2r-bf16.embedding"] = net.token_embeddings.weight

    net = scatter(Citer())
    net.mlp[1].running_mean.normal_()
    net.mlp[1].running_var.uniform_(0.5, 3)
    with torch.no_grad():
        golden["citer"] = torch.sigmoid(net(hidden))[:, 0]
    state = net.state_dict()
    torch.save(state, os.path.join(HERE, "citer.pth"))
    torch.save(state, os.path.join(HERE, "citer-legacy.pth"), _use_new_zipfile_serialization=False)
    router("citer", "citer", {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}, threshold=0.9)

    class Hostile:
        def __reduce__(self):
            return os.system, ("true",)

    torch.save({"model_type": "HiddenStatesTokenLMHeadLogitsClassifier", "state_dict": Hostile()}, os.path.join(HERE, "hostile.pt"))

    weight = torch.randn(H) / H**0.5
    golden["co-llm"] = torch.sigmoid(hidden @ weight)
    router("co-llm", "co-llm", {"defer.weight": weight})
    write("golden.safetensors", golden)


if __name__ == "__main__":
    main()
