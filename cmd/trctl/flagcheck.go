package main

import (
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/tokenrouter/tokenrouter/gateway"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
)

// Checks of flags' values that commands make before they write, dial or load anything.
// Each error names the flag, and what it should have.

// checkListen reports an address that nothing can listen at. An empty one is left to the
// command.
func checkListen(flag, addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return usagef("%s: %q is no address such as :7000 or 10.0.0.1:7000: %w", flag, addr, err)
	}
	return nil
}

// checkDial reports an address that nothing can be reached at. An empty one is left to
// the command. what the address is of is said.
func checkDial(flag, addr, what string) error {
	if addr == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err == nil && (host == "" || port == "" || port == "0") {
		err = errors.New("a host and a port are needed")
	}
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return usagef("%s: the address of %s, %q, must be host:port: %w", flag, what, addr, err)
	}
	return nil
}

// checkAdvertise reports an address that others cannot be told.
func checkAdvertise(addr string) error {
	if _, err := link.Advertised(addr, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, ""); err != nil {
		return usagef("--advertise: %w; give a host, or host:port, by which other machines reach this one", err)
	}
	return nil
}

// checkURL reports a server's address that is none. An empty one is left to the command.
func checkURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return usagef("--url: %q is no address such as http://127.0.0.1:8000", text)
	}
	return nil
}

// checkOrigins reports an origin that no browser sends.
func checkOrigins(list []string) error {
	for _, o := range list {
		if !gateway.ValidOrigin(o) {
			return usagef("--allow-origins: %q is neither * nor an origin such as https://chat.example.org", o)
		}
	}
	return nil
}

// checkOutput reports a file that cannot be written when the work is done, as far as its
// directory tells. An empty name is no file.
func checkOutput(flag, name string) error {
	if name == "" {
		return nil
	}
	if stat, err := os.Stat(name); err == nil && stat.IsDir() {
		return usagef("%s: %s is a directory; give a file", flag, name)
	}
	dir := filepath.Dir(name)
	if stat, err := os.Stat(dir); err != nil || !stat.IsDir() {
		return usagef("%s: there is no directory %s to write %s to", flag, dir, filepath.Base(name))
	}
	return nil
}

// checkSVG reports a picture that could not be written when the work is done. An empty name
// is no picture.
func checkSVG(flag, name string) error {
	if name != "" && !strings.HasSuffix(name, ".svg") {
		return usagef("%s writes SVG: the file's name must end in .svg", flag)
	}
	return checkOutput(flag, name)
}

// firstOf is the first of some faults.
func firstOf(faults ...error) error {
	for _, err := range faults {
		if err != nil {
			return err
		}
	}
	return nil
}
