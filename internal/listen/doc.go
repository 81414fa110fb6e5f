// Package listen opens a node's ports. Its errors say which of them could not be had, so
// that whoever has the flags can name the right one. Nodes call it before they run; it
// owns nothing.
package listen
