// Package models embeds the tiny trio: three small trained models that share
// one tokenizer, and the arithmetic problems they are measured with.
//
// Commands and tests open them as file systems, so that everything runs with no
// download. Paths in the working tree are never used at run time. testdata holds
// reference outputs and the program that made them.
package models
