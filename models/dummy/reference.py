"""Dummy weights in plain Python: the second opinion to package dummy and the kernel hashfill. See doc.go for the recipe.

    python3 reference.py SEED NAME SHAPE FIRST COUNT      SHAPE as 4x8; prints one raw bfloat16 a line, in hex
"""
import math
import struct
import sys

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def recipe(seed, name, shape):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = (h ^ b) * 0x100000001B3 & MASK
    key = mix(h + mix(seed + GOLDEN & MASK) & MASK)
    if len(shape) == 1 and name.endswith("norm.weight"):
        return key, 0.25, 1.0
    if len(shape) <= 1:
        return key, f32(0.02), 0.0
    gain = 4.0 if name.endswith(("embed_tokens.weight", "lm_head.weight")) else 1.0
    return key, f32(gain * math.sqrt(3.0 / max(shape[-1], 1))), 0.0


def element(key, scale, offset, i):
    x = mix(key + (i + 1) * GOLDEN & MASK) >> 48
    u = (x - 65536 if x >= 32768 else x) / 32768.0
    bits = struct.unpack("I", struct.pack("f", f32(offset + f32(scale * u))))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


if __name__ == "__main__":
    seed, name, shape, first, count = sys.argv[1:6]
    r = recipe(int(seed), name, [int(n) for n in shape.split("x")])
    for i in range(int(first), int(first) + int(count)):
        print("%04x" % element(*r, i))
