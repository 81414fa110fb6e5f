// Package idmap translates token ids between two models whose vocabularies are equal but
// for a few added tokens, such as <think> of one family of reasoning models and another.
//
// Between replicas ids are always the entry model's. A collaborator with a map translates
// at its border: what arrives becomes its own ids before anything else looks at the frame
// (Receive), and what it sends becomes the entry's again (Send). Inside, all that knows
// ids works on its own: sequence, prefix cache, sampler, penalties, policy. So nothing is
// translated twice, and two deployments may use one replica with different maps.
//
// A token that one side lacks cannot be translated. The collaborator must not sample
// those of OnlyOwn, which Receive sees to; the entry must neither sample those of
// OnlyEntry nor take them in a prompt.
//
// Whoever makes a Map needs both vocabularies, and has the files of one where the models
// run in different processes. What the other process tells of its own (Summarize: a
// fingerprint of the words, and the added tokens) is enough to put it together (Remote).
//
// A Map never changes and may be shared. The nil Map translates nothing.
package idmap
