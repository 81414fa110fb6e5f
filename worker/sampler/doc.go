// Package sampler turns one position's raw logits into a token and its routing
// features. It is pure: the same logits, parameters, ids before the position and
// key give the same output whatever the batch, the replica or the step. The CPU
// executor calls it; the CUDA executor follows the recipe below in its kernels.
//
// Input: z [V] float32, raw logits of the real vocabulary (padded rows are cut
// off by the caller, so a padded id can never be drawn). A logit may be -Inf
// (never drawn). NaN, +Inf, or nothing above -Inf sets step.FlagNaN, in the raw
// logits and in the adjusted ones.
//
// # Adjusted logits
//
// y starts as z. Every operation below is one float32 operation, rounded to
// nearest, with no fused multiply-add:
//
//  1. Repetition penalty r (0 and 1 are off), for each id that stands in the
//     prompt or in the answer before the position: y/r if y > 0, else y·r.
//  2. For each id that stands n > 0 times in the answer before the position:
//     y = y - (frequency penalty · n), then y = y - presence penalty.
//  3. For each biased id: y = y + bias.
//  4. If the answer has fewer tokens than MinTokens: y = -Inf for the stop ids.
//
// The answer are the ids from position PromptLen on, whichever model wrote them.
// Ids in the range [V, padded rows) are ignored. The counts depend on the ids
// before the position alone, so they are rebuilt from these and never sent.
//
// # Choice
//
// Greedy (temperature 0): the largest y, the lowest id on ties.
//
// Otherwise, with T the temperature and m the largest y, in float64:
//
//  1. Order the ids by (y descending, id ascending). All ids are candidates.
//  2. Top-k: the first k stay.
//  3. Top-p: with e(i) = exp((y(i) - m) / T), the shortest prefix stays whose
//     sum of e reaches top-p times the sum over the candidates. At least one stays.
//  4. Min-p: those stay with (y(i) - m) / T >= ln(min-p).
//  5. Draw: the candidate with the largest y(i)/T + g(i), the lowest id on ties.
//     g(i) = -ln(-ln(1-v)), v = (w + 0.5) / 2^32, and w is the word that
//     package philox makes for index i of the stream (seed, position, model, Token).
//     The position is the one that the drawn token would take.
//
// By the Gumbel-max rule step 5 draws from the softmax of the candidates. A
// float32 kernel may differ where two scores are within rounding of each other.
//
// # Features
//
// Features and log-probabilities come from raw z at temperature 1, before any
// penalty or truncation, with sums in float64: lse = m + ln Σ exp(z-m),
// log-probability z - lse, entropy ln S - U/S with S = Σ exp(z-m) and
// U = Σ (z-m)·exp(z-m), in nats.
package sampler
