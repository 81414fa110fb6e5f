// Package routers embeds the router nets that are shipped: pairs of NAME.safetensors
// and NAME.json, as package worker/router reads them.
//
// A net's name is its entry model's and its kind's, such as tiny-s-r2r. Deployments
// whose policy needs a net and names none get the one of that name.
package routers
