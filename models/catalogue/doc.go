// Package catalogue knows models by name: the hub id and the config, so that a model's shape is known offline, for plans,
// for dummy weights, and as the short name of `--model`.
//
// The file catalogue.yaml is embedded. The configs are Hugging Face config.json bodies with the fields that the engine
// reads; package worker/model checks them. This package never downloads anything.
package catalogue
