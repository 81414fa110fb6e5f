// Package pulse judges whether another process has fallen silent, by signs of life that
// come at a known interval. Packages h2 and peer use it for connections. It has no clock:
// time is an argument.
//
// A process that is short of CPU time is late with its signs and with hearing those of
// others. It must not be taken for dead, nor take others for dead. So the silence that is
// borne grows with what was seen lately:
//
//   - A sign that came late widens it by twice the lateness.
//   - The owner's own tick that came late widens it by the lateness, since what the two
//     share may be what is busy; the time in which the owner did not run is not held
//     against the other side in any case.
//
// Both are forgotten with time.
package pulse
