// Package doctor finds out whether a machine can run TokenRouter, and says what to install when it cannot.
//
// `trctl doctor` calls Run and prints the Report as text or JSON. Run is a pure function of what a Prober found; the
// Prober of this machine (ThisMachine) only looks: it takes no device memory, keeps nothing open and changes nothing,
// except that it makes the folder of the cubin cache.
//
// A machine without a GPU is healthy: it serves with the CPU backend. So what only a GPU needs is a warning there, and a
// failure where a driver is installed.
package doctor
