// Package vllmnames tells a process's metrics a second time, under the names that vLLM
// has for them, for dashboards, autoscalers and request pickers that know those. What
// trctl_… says is the truth; only what means exactly the same has a second name. Nothing
// is measured or kept here: every scrape reads the process's own metrics.
package vllmnames
