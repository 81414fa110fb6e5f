"""Ids of the shared tokenizer that code must know."""

# Ids from VOCAB on are padding rows of the logits and never written.
VOCAB = 749
PAD, IM_START, IM_END, THINK, END_THINK = 744, 745, 746, 747, 748
