// Package pair describes a checkpoint's directory and says whether two of them can
// write one answer together: whether an id means the same text, and ends an answer,
// on both.
//
// `trctl model inspect` and `trctl model check` are the callers. The package reads;
// it never loads a model for serving.
package pair
