// Package apikey makes and recognises the API keys of a cluster.
//
// A key is tr- and 256 random bits. Its first eight characters after tr- are its
// public id, by which it is listed, logged and looked up; the rest is secret. The
// cluster keeps HMAC-SHA-256 of the whole under a pepper that only control nodes
// and gateways have, so that neither the state nor a backup of it gives a key away.
package apikey
