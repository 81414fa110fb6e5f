// Command trctl is TokenRouter's one binary: it serves, chats, evaluates and
// operates.
//
// Each command is a struct with its flags as fields and a Run method, so that
// tests call it without a new process. Every flag has an environment twin
// (TRCTL_ and the flag's name in upper case) and, for serve, a key in the YAML
// file; a flag wins over the environment, the environment over the file.
//
// This package reads flags, the environment, files and the terminal, and starts
// what internal/node puts together. Nothing else in the module reads the
// environment.
package main
