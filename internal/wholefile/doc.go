// Package wholefile replaces files as a whole: whoever reads one, also after a crash,
// finds the old text or the new one.
package wholefile
