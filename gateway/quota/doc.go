// Package quota holds the rates of API keys over all gateways of a cluster. The
// leader has the budget of each key; a gateway borrows slices of it, about a
// second's worth, and spends them without asking. What is granted counts as used,
// so that all gateways together never get more than the rate, however many there
// are; a slice that was not spent in time lapses.
//
// While no leader answers, each gateway grants itself its part of the rate: an
// n-th, with n gateways.
package quota
