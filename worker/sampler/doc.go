// Package sampler turns one position's raw logits into a token and its routing
// features. It is pure: the same logits, parameters and key give the same
// output whatever the batch, the replica or the step. The CPU executor calls
// it; the CUDA executor follows the recipe below in its kernels.
//
// Input: z [V] float32, raw logits of the real vocabulary (padded rows are cut
// off by the caller, so a padded id can never be drawn). A logit may be -Inf
// (never drawn). NaN, +Inf, or nothing above -Inf sets step.FlagNaN.
//
// Greedy (temperature 0): the largest z, the lowest id on ties.
//
// Otherwise, with T the temperature, everything in float64:
//
//  1. Order the ids by (z descending, id ascending). All ids are candidates.
//  2. Top-k: the first k stay.
//  3. Top-p: with e(i) = exp((z(i) - max z) / T), the shortest prefix stays whose
//     sum of e reaches top-p times the sum over the candidates. At least one stays.
//  4. Draw: the candidate with the largest z(i)/T + g(i), the lowest id on ties.
//     g(i) = -ln(-ln(1-v)), v = (w + 0.5) / 2^32, and w is the word that
//     package philox makes for index i of the stream (seed, position, model, Token).
//     The position is the one that the drawn token would take.
//
// By the Gumbel-max rule step 4 draws from the softmax of the candidates. A
// float32 kernel may differ where two scores are within rounding of each other.
//
// Features and log-probabilities come from raw z at temperature 1, before any
// truncation, with sums in float64: lse = m + ln Σ exp(z-m), log-probability
// z - lse, entropy ln S - U/S with S = Σ exp(z-m) and U = Σ (z-m)·exp(z-m), in nats.
package sampler
