// Package handoff is the protocol between sub-services: who has the turn of a
// request, and the tokens and routing state that go with it. Keys and values
// never travel.
package handoff
