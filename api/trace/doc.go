// Package trace is what is remembered of requests that have ended: who had the turn
// when, and what the request waited for. It is data: every replica keeps the parts of the
// requests that it had (package subservice), and operators put them together.
//
// A part has neither ids of tokens nor text.
package trace
