package bench

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
)

// slowEvents splits a whole stream into the data and names of its events.
func slowEvents(text string) [][2]string {
	var out [][2]string
	var data []string
	name := ""
	end := func() {
		if data != nil {
			out = append(out, [2]string{name, strings.Join(data, "\n")})
		}
		data, name = nil, ""
	}
	lines := strings.Split(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1] // after the last line end there is no line
	}
	for _, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			end()
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch key {
		case "data":
			data = append(data, value)
		case "event":
			name = value
		}
	}
	end()
	return out
}

var eventSeeds = []string{
	"", "\n\n", "data: a\n\n", "data: a", "data:a\r\n\r\ndata:  b\r\n\r\n", ": comment\n\ndata: a\n: comment\ndata: b\ndata: c\n\n",
	"event: error\ndata: x\n\ndata: y\n\n", "id: 1\nretry: 5\n\ndata\n\ndata:\n\n", "data: a\ndata: b", "data: a\n\ndata: [DONE]\n\n", "\r\ndata: \r\n", "event: e\n\ndata: z\n\n",
}

func checkEvents(t *testing.T, text string, read io.Reader) {
	t.Helper()
	var e events
	e.reset(read)
	var got [][2]string
	for {
		ev, err := e.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, [2]string{string(ev.name), string(ev.data)})
	}
	want := slowEvents(text)
	if len(got) != len(want) {
		t.Fatalf("%q has events %q, want %q", text, got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("event %d of %q is %q, want %q", i, text, got[i], want[i])
		}
	}
}

// pieces reads at most n bytes at a time, n drawn anew for each read.
type pieces struct {
	from io.Reader
	rng  *rand.Rand
	most int
}

func (p *pieces) Read(b []byte) (int, error) {
	return p.from.Read(b[:min(len(b), 1+p.rng.IntN(p.most))])
}

func FuzzEvents(f *testing.F) {
	for i, s := range eventSeeds {
		f.Add(s, uint64(i))
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		checkEvents(t, text, strings.NewReader(text))
		checkEvents(t, text, iotest.OneByteReader(strings.NewReader(text)))
		checkEvents(t, text, iotest.DataErrReader(strings.NewReader(text)))
		checkEvents(t, text, &pieces{strings.NewReader(text), rand.New(rand.NewPCG(seed, 0)), 5})
	})
}

// Long streams move and grow the buffer.
func TestEventsOfManySizes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var text strings.Builder
	for range 300 {
		for range 1 + rng.IntN(2) {
			text.WriteString("data: " + strings.Repeat("x", rng.IntN(1<<rng.IntN(15))) + "\n")
		}
		text.WriteString("\n")
	}
	for _, most := range []int{7, 1000, 100000} {
		checkEvents(t, text.String(), &pieces{strings.NewReader(text.String()), rng, most})
	}
}

func TestEventsEndWithTheReadersError(t *testing.T) {
	broken := errors.New("broken")
	var e events
	e.reset(io.MultiReader(strings.NewReader("data: a\n\ndata: half"), iotest.ErrReader(broken)))
	if ev, err := e.next(); err != nil || string(ev.data) != "a" {
		t.Fatalf("first event %q, %v", ev.data, err)
	}
	for range 2 {
		if ev, err := e.next(); !errors.Is(err, broken) {
			t.Fatalf("event %q, %v: half an event counts as one", ev.data, err)
		}
	}
}

func TestEventsBound(t *testing.T) {
	for name, text := range map[string][]byte{
		"one line":   bytes.Repeat([]byte("x"), maxEventBytes+1),
		"many lines": bytes.Repeat([]byte("data: 0123456789\n"), maxEventBytes/10),
	} {
		var e events
		e.reset(bytes.NewReader(text))
		if _, err := e.next(); !errors.Is(err, errEventSize) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
