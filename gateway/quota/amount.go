package quota

import "github.com/tokenrouter/tokenrouter/api/cluster"

func plus(a, b cluster.Amount) cluster.Amount {
	return cluster.Amount{Requests: a.Requests + b.Requests, Tokens: a.Tokens + b.Tokens}
}

// minus is not below zero.
func minus(a, b cluster.Amount) cluster.Amount {
	return cluster.Amount{Requests: max(0, a.Requests-b.Requests), Tokens: max(0, a.Tokens-b.Tokens)}
}

func least(a, b cluster.Amount) cluster.Amount {
	return cluster.Amount{Requests: min(a.Requests, b.Requests), Tokens: min(a.Tokens, b.Tokens)}
}

// covers says that a is no less than b.
func covers(a, b cluster.Amount) bool { return a.Requests >= b.Requests && a.Tokens >= b.Tokens }
