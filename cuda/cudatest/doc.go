// Package cudatest gives tests a device: the first GPU when driver and NVRTC are there, else the emulator of package
// simt, else the test skips and says why. On both, buffers are filled with NaN and stand between guard words that are
// checked when the test ends.
package cudatest
