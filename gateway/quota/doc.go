// Package quota holds the rates of API keys over all gateways of a cluster. The
// leader has the budget of each key; a gateway borrows slices of it, about a
// second's worth, and spends them without asking. A slice that was not spent within
// cluster.SliceLife lapses and is given back, as is what a request had reserved and
// did not use. So whatever is used within a minute was given within
// cluster.SliceWindow, and the leader, which gives no more than the rate in that time,
// keeps the rate for all gateways together, however many there are.
//
// A new leader knows nothing of the slices before it. Every question therefore tells
// what the gateway was given lately, and Book.Tell does so for all keys at once when a
// change of leader is seen.
//
// The leader says under which time it has a slice. What is not used of it goes back
// under that time, with a number by which the leader knows a repetition: an ask whose
// answer was lost is simply told again.
//
// If the leader gives too little, it says all that it counts of the rate. From that, and
// from what it has itself, a gateway knows whether there is enough for another request,
// and when there will be: the time that a refusal tells.
//
// What a request uses beyond what it had reserved is told to the leader as well. What is
// more than the rate is owed, and taken off the minutes that follow, for all gateways.
//
// While no leader answers, each gateway grants itself its part of the rate: an n-th,
// with n gateways, less what it was given before. The next leader is told of it.
package quota
