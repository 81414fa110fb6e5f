package handoff

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// frames has one frame of every shape that the goldens pin down.
func frames() map[string]Frame {
	return map[string]Frame{
		"hello": {
			Kind: KindHello, ProtocolVersion: 1, Replica: "small-0", Model: "tiny-s",
			Session: 0x1122334455667788, PeerSession: 0x99, Ack: 7, Credits: 1024,
		},
		"hello-range": {
			Kind: KindHello, ProtocolVersion: 300, OldestVersion: 1, Replica: "small-0", Model: "tiny-s",
			Session: 0x1122334455667788, Credits: 1024,
		},
		"group": {Kind: KindGroup, Seq: 12, Live: 300, StepMicros: 27900},
		"ack":   {Kind: KindAck, Ack: 0x0102030405060708, Credits: 9},
		"hop": {
			Kind: KindHandoff, Seq: 3, Request: 0xabcdef, Epoch: 1, Hop: 5, From: 0, To: 1,
			Base: 100, Tokens: []Token{{ID: 42, Model: 0}}, Seen: []int32{101, 90},
		},
		"hop-state": {
			Kind: KindHandoff, Seq: 4, Request: 1, Epoch: 2, Hop: 6, From: 1, To: 0,
			Base: 7, Tokens: []Token{{ID: 1, Model: 1}, {ID: 151642, Model: 1}},
			State: []byte{1, 2, 3, 4}, Blob: []byte("blob"), Done: DoneLength,
		},
		"first": {
			Kind: KindHandoff, Seq: 1, Request: 2, Epoch: 1, Hop: 1, To: 1,
			Tokens: []Token{{ID: 5}, {ID: 6}, {ID: 7}},
			First: &First{Deployment: "pair", PromptLen: 2, Entry: "small-0", Age: 1796000000123456789, Salt: [32]byte{0: 0xaa, 31: 0xbb}, Sampling: sampling.Params{
				Temperature: 0.6, TopP: 0.95, TopK: 20, Seed: 12345, MaxTokens: 100, Logprobs: 2, StopIDs: []int32{3, 4},
			}},
			Logprobs: []Logprob{{}, {Logprob: -1}, {Logprob: -0.5, Top: []TopEntry{{ID: 7, Logprob: -0.5}, {ID: 9, Logprob: float32(math.Inf(-1))}}}},
		},
		"first-adjusted": {
			Kind: KindHandoff, Seq: 1, Request: 2, Epoch: 1, Hop: 1, To: 1,
			Tokens: []Token{{ID: 5}, {ID: 6}},
			First: &First{Deployment: "pair", PromptLen: 2, Entry: "small-0", Sampling: sampling.Params{
				Temperature: 1, MinP: 0.05, RepetitionPenalty: 1.25, FrequencyPenalty: -0.5, PresencePenalty: 2,
				LogitBias: []sampling.Bias{{ID: 3, Value: -100}, {ID: 700, Value: 1.5}}, MinTokens: 9, MaxTokens: 100, Logprobs: -1,
			}},
		},
		"first-override": {
			Kind: KindHandoff, Seq: 1, Request: 2, Epoch: 1, Hop: 1, To: 1,
			Tokens: []Token{{ID: 5}},
			First: &First{Deployment: "pair", PromptLen: 1, Entry: "small-0", Sampling: sampling.Params{MaxTokens: 100, Logprobs: -1},
				Override: &routing.Override{Policy: "random", Threshold: at(0.25), MaxLargeShare: at(0)}},
		},
		"first-version": {
			Kind: KindHandoff, Seq: 1, Request: 2, Epoch: 1, Hop: 1, To: 1,
			Tokens: []Token{{ID: 5}},
			First: &First{Deployment: "pair", PromptLen: 1, Entry: "small-0", Sampling: sampling.Params{MaxTokens: 100, Logprobs: -1},
				Override: &routing.Override{Policy: "random"}, Version: 0x0123456789abcdef},
		},
		"progress": {
			Kind: KindProgress, Seq: 9, Request: 3, Epoch: 1, Hop: 2, From: 1,
			Base: 12, Tokens: []Token{{ID: 8, Model: 1}}, Seen: []int32{12, 13}, State: []byte{9},
		},
		"nack":    {Kind: KindNack, Seq: 10, Request: 4, Epoch: 1, Hop: 3, From: 1, Known: 55},
		"release": {Kind: KindRelease, Seq: 11, Request: 5, Epoch: 1, Hop: 4, Done: DoneError, Code: CodeConflict},
		"goodbye": {Kind: KindRelease, Done: DoneError, Code: "closing"},
	}
}

func at(v float64) *float64 { return &v }

// Every part of an override must travel, also ones that are added later, and a
// frame that differs in one alone is another turn. Of an empty one nothing travels.
func TestOverrideTravels(t *testing.T) {
	full := frames()["first-override"]
	o := reflect.ValueOf(full.First.Override).Elem()
	for i := range o.NumField() {
		name := o.Type().Field(i).Name
		if o.Field(i).IsZero() {
			t.Errorf("%s is not set by this test", name)
		}
		f, first, part := full, *full.First, *full.First.Override
		f.First, first.Override = &first, &part
		reflect.ValueOf(&part).Elem().Field(i).SetZero()
		b, err := Append(nil, &f)
		if err != nil {
			t.Fatalf("without %s: %v", name, err)
		}
		var back Frame
		if err := Decode(b, &back); err != nil {
			t.Fatalf("without %s: %v", name, err)
		}
		if !back.First.Override.Equal(&part) || digest(&f) == digest(&full) {
			t.Errorf("without %s: decoded %+v", name, back.First.Override)
		}
	}
	f, first := full, *full.First
	f.First, first.Override = &first, &routing.Override{}
	empty, err := Append(nil, &f)
	if err != nil {
		t.Fatal(err)
	}
	first.Override = nil
	none, err := Append(nil, &f)
	if err != nil || !bytes.Equal(empty, none) {
		t.Errorf("an empty override travels: %v", err)
	}
	for name, bad := range map[string]*routing.Override{
		"a share above 1": {MaxLargeShare: at(2)}, "a negative threshold": {Threshold: at(-1)}, "no text": {Policy: "a\x00"},
	} {
		first.Override = bad
		if _, err := Append(nil, &f); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A changed golden is a change of the protocol: it needs another Version.
// UPDATE_GOLDEN=1 writes them.
func TestGolden(t *testing.T) {
	for name, f := range frames() {
		t.Run(name, func(t *testing.T) {
			got, err := Append(nil, &f)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", "golden", name+".hex")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(path, []byte(hexLines(got)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if s := hexLines(got); s != string(want) {
				t.Fatalf("got\n%swant\n%s", s, want)
			}
			var back Frame
			if err := Decode(got, &back); err != nil {
				t.Fatal(err)
			}
			if !same(&f, &back) {
				t.Fatalf("decoded\n%+v\nof\n%+v", back, f)
			}
		})
	}
}

// Every sampling parameter must travel, also ones that are added later, and a
// frame that differs in one alone is another turn.
func TestSamplingTravels(t *testing.T) {
	full := frames()["first-adjusted"]
	full.First.Sampling.TopP, full.First.Sampling.TopK, full.First.Sampling.Seed = 0.5, 3, 4
	full.First.Sampling.StopIDs = []int32{8}
	p := reflect.ValueOf(&full.First.Sampling).Elem()
	for i := range p.NumField() {
		name := p.Type().Field(i).Name
		if p.Field(i).IsZero() {
			t.Errorf("%s is not set by this test", name)
		}
		f := full
		first := *full.First
		f.First = &first
		reflect.ValueOf(&first.Sampling).Elem().Field(i).SetZero()
		if name == "MaxTokens" {
			first.Sampling.MaxTokens = first.Sampling.MinTokens // 0 would be below it
		}
		b, err := Append(nil, &f)
		if err != nil {
			t.Fatalf("without %s: %v", name, err)
		}
		var back Frame
		if err := Decode(b, &back); err != nil {
			t.Fatalf("without %s: %v", name, err)
		}
		if !same(&f, &back) || same(&full, &back) {
			t.Errorf("without %s: decoded %+v", name, back.First.Sampling)
		}
		if digest(&f) == digest(&full) {
			t.Errorf("%s is not in the digest", name)
		}
	}
}

func hexLines(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := min(16, len(b))
		s.WriteString(hex.EncodeToString(b[:n]) + "\n")
		b = b[n:]
	}
	return s.String()
}

// same compares frames by value; an empty slice equals nil.
func same(a, b *Frame) bool {
	x, y := *a, *b
	for _, f := range []*Frame{&x, &y} {
		if len(f.Tokens) == 0 {
			f.Tokens = nil
		}
		if len(f.Seen) == 0 {
			f.Seen = nil
		}
		if len(f.State) == 0 {
			f.State = nil
		}
		if len(f.Blob) == 0 {
			f.Blob = nil
		}
		f.Logprobs = append([]Logprob(nil), f.Logprobs...)
		for i := range f.Logprobs {
			if len(f.Logprobs[i].Top) == 0 {
				f.Logprobs[i].Top = nil
			}
		}
	}
	return reflect.DeepEqual(x, y)
}

// One token of a two-model deployment must stay small on the wire.
func TestHopSize(t *testing.T) {
	for k := 1; k <= 8; k++ {
		f := Frame{
			Kind: KindHandoff, Seq: math.MaxUint64, Request: math.MaxUint64, Epoch: math.MaxUint32, Hop: math.MaxUint32,
			To: 1, Base: 1 << 20, Tokens: make([]Token, k), Seen: []int32{1 << 20, 1 << 20},
		}
		b, err := AppendFramed(nil, &f)
		if err != nil {
			t.Fatal(err)
		}
		if got, limit := len(b)-PrefixSize, 48+5*k; got > limit {
			t.Errorf("%d tokens take %d bytes, more than %d", k, got, limit)
		}
	}
}

// Every prefix of a frame is refused, and so is a byte too many.
func TestTruncated(t *testing.T) {
	for name, f := range frames() {
		b, err := Append(nil, &f)
		if err != nil {
			t.Fatal(err)
		}
		var back Frame
		for n := range b {
			if err := Decode(b[:n], &back); !errors.Is(err, ErrTruncated) {
				t.Errorf("%s cut to %d bytes: %v", name, n, err)
			}
		}
		if err := Decode(append(b, 0), &back); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s with a byte too many: %v", name, err)
		}
	}
}

func TestRefuse(t *testing.T) {
	hop := func(edit func(*Frame)) Frame {
		f := frames()["hop"]
		edit(&f)
		return f
	}
	first := func(edit func(*First)) Frame {
		f := frames()["first"]
		edit(f.First)
		return f
	}
	cases := map[string]struct {
		f    Frame
		want error
	}{
		"no kind":           {Frame{}, ErrKind},
		"unknown kind":      {Frame{Kind: 99}, ErrKind},
		"tokens":            {hop(func(f *Frame) { f.Tokens = make([]Token, MaxTokens+1) }), ErrTooLarge},
		"state":             {hop(func(f *Frame) { f.State = make([]byte, MaxState+1) }), ErrTooLarge},
		"blob":              {hop(func(f *Frame) { f.Blob = make([]byte, MaxBlob+1) }), ErrTooLarge},
		"seen":              {hop(func(f *Frame) { f.Seen = make([]int32, MaxModels+1) }), ErrTooLarge},
		"seen below 0":      {hop(func(f *Frame) { f.Seen = []int32{-1} }), ErrMalformed},
		"token below 0":     {hop(func(f *Frame) { f.Tokens[0].ID = -1 }), ErrMalformed},
		"model":             {hop(func(f *Frame) { f.Tokens[0].Model = MaxModels }), ErrMalformed},
		"from":              {hop(func(f *Frame) { f.From = MaxModels }), ErrMalformed},
		"base below 0":      {hop(func(f *Frame) { f.Base = -1 }), ErrMalformed},
		"base overflows":    {hop(func(f *Frame) { f.Base = math.MaxInt32 }), ErrMalformed},
		"done":              {hop(func(f *Frame) { f.Done = DoneError + 1 }), ErrMalformed},
		"logprobs":          {hop(func(f *Frame) { f.Logprobs = make([]Logprob, 2) }), ErrMalformed},
		"logprob NaN":       {hop(func(f *Frame) { f.Logprobs = []Logprob{{Logprob: float32(math.NaN())}} }), ErrMalformed},
		"top":               {hop(func(f *Frame) { f.Logprobs = []Logprob{{Top: make([]TopEntry, sampling.MaxLogprobs+1)}} }), ErrTooLarge},
		"hop with known":    {hop(func(f *Frame) { f.Known = 1 }), ErrMalformed},
		"hop with code":     {hop(func(f *Frame) { f.Code = "x" }), ErrMalformed},
		"hop with ack":      {hop(func(f *Frame) { f.Ack = 1 }), ErrMalformed},
		"progress and done": {hop(func(f *Frame) { f.Kind, f.Done = KindProgress, DoneStop }), ErrMalformed},
		"first and base":    {func() Frame { f := frames()["first"]; f.Base = 1; return f }(), ErrMalformed},
		"prompt length":     {first(func(x *First) { x.PromptLen = 4 }), ErrMalformed},
		"temperature":       {first(func(x *First) { x.Sampling.Temperature = float32(math.Inf(1)) }), ErrMalformed},
		"top-p":             {first(func(x *First) { x.Sampling.TopP = -1 }), ErrMalformed},
		"top-k":             {first(func(x *First) { x.Sampling.TopK = -1 }), ErrMalformed},
		"alternatives":      {first(func(x *First) { x.Sampling.Logprobs = 21 }), ErrMalformed},
		"min-p":             {first(func(x *First) { x.Sampling.MinP = 2 }), ErrMalformed},
		"penalty":           {first(func(x *First) { x.Sampling.PresencePenalty = float32(math.NaN()) }), ErrMalformed},
		"min tokens":        {first(func(x *First) { x.Sampling.MinTokens = x.Sampling.MaxTokens + 1 }), ErrMalformed},
		"biases":            {first(func(x *First) { x.Sampling.LogitBias = make([]sampling.Bias, 1025) }), ErrTooLarge},
		"biases unsorted":   {first(func(x *First) { x.Sampling.LogitBias = []sampling.Bias{{ID: 2}, {ID: 1}} }), ErrMalformed},
		"stop ids":          {first(func(x *First) { x.Sampling.StopIDs = make([]int32, 65) }), ErrTooLarge},
		"stop id below 0":   {first(func(x *First) { x.Sampling.StopIDs = []int32{-1} }), ErrMalformed},
		"deployment":        {first(func(x *First) { x.Deployment = strings.Repeat("x", MaxName+1) }), ErrTooLarge},
		"entry":             {first(func(x *First) { x.Entry = strings.Repeat("x", MaxName+1) }), ErrTooLarge},
		"deployment line":   {first(func(x *First) { x.Deployment = "a\nb" }), ErrMalformed},
		"nack below 0":      {Frame{Kind: KindNack, Known: -1}, ErrMalformed},
		"nack with tokens":  {Frame{Kind: KindNack, Tokens: make([]Token, 1)}, ErrMalformed},
		"release and known": {Frame{Kind: KindRelease, Known: 1}, ErrMalformed},
		"group below 0":     {Frame{Kind: KindGroup, Live: -1}, ErrMalformed},
		"group with a turn": {Frame{Kind: KindGroup, Request: 1}, ErrMalformed},
		"hop with live":     {hop(func(f *Frame) { f.Live = 1 }), ErrMalformed},
		"release with step": {Frame{Kind: KindRelease, StepMicros: 1}, ErrMalformed},
		"ack with a number": {Frame{Kind: KindAck, Seq: 1}, ErrMalformed},
		"ack with a turn":   {Frame{Kind: KindAck, Request: 1}, ErrMalformed},
		"hello session":     {Frame{Kind: KindHello, ProtocolVersion: Version}, ErrMalformed},
		"hello version":     {Frame{Kind: KindHello, ProtocolVersion: 9, Session: 1}, ErrVersion},
		"hello backwards":   {Frame{Kind: KindHello, ProtocolVersion: 1, OldestVersion: 2, Session: 1}, ErrVersion},
		"hello said twice":  {Frame{Kind: KindHello, ProtocolVersion: Version, OldestVersion: Version, Session: 1}, ErrMalformed},
		"ack with a range":  {Frame{Kind: KindAck, OldestVersion: 1}, ErrMalformed},
		"hello name":        {Frame{Kind: KindHello, ProtocolVersion: Version, Session: 1, Replica: "\xff"}, ErrMalformed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dst := []byte("kept")
			got, err := Append(dst, &c.f)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if string(got) != "kept" {
				t.Fatalf("dst became %q", got)
			}
		})
	}
}

// Lengths that lie are refused before anything is allocated for them.
func TestLies(t *testing.T) {
	hop := frames()["hop"]
	b, err := Append(nil, &hop)
	if err != nil {
		t.Fatal(err)
	}
	b[32], b[33], b[34], b[35] = 0, 0, 1, 0 // 65,536 tokens
	var f Frame
	n := testing.AllocsPerRun(10, func() {
		if err := Decode(b, &f); err != ErrTruncated {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("a false count allocates %v times", n)
	}
	b[34] = 0xff
	if err := Decode(b, &f); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	if err := Decode(make([]byte, MaxFrameSize+1), &f); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
}

// What a Hello says of versions decides before the rest of it is looked at.
func TestVersions(t *testing.T) {
	rest := hello(t)[4:]
	for name, c := range map[string]struct {
		head []byte // kind, flags, newest, and the oldest if flags say so
		rest []byte
		want int // the version agreed on
		err  error
		says string
	}{
		"the release's":   {[]byte{1, 0, 1, 0}, rest, 1, nil, ""},
		"newer, reads it": {[]byte{1, 1, 9, 0, 1, 0}, rest, Version, nil, ""},
		"too new":         {[]byte{1, 0, 77, 0}, []byte("whatever another version says"), 0, ErrVersion, "the other 77: the other is too new"},
		"too new, range":  {[]byte{1, 1, 9, 0, 8, 0}, []byte("whatever another version says"), 0, ErrVersion, "the other 8 to 9: the other is too new"},
		"no version":      {[]byte{1, 0, 0, 0}, rest, 0, ErrVersion, "no range of versions"},
		"backwards":       {[]byte{1, 1, 1, 0, 2, 0}, rest, 0, ErrVersion, "no range of versions"},
		"oldest is 0":     {[]byte{1, 1, 2, 0, 0, 0}, rest, 0, ErrMalformed, "oldest"},
		"no range at all": {[]byte{1, 1, 9, 0, 9, 0}, rest, 0, ErrVersion, "too new"},
		"said twice":      {[]byte{1, 1, Version, 0, Version, 0}, rest, 0, ErrMalformed, "named all the same"},
		"unknown flag":    {[]byte{1, 2, 1, 0}, rest, 0, ErrMalformed, "flags"},
		"cut":             {[]byte{1, 1, 9, 0, 1}, nil, 0, ErrTruncated, ""},
		"cut, no flag":    {[]byte{1, 0, 1}, nil, 0, ErrTruncated, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var f Frame
			err := Decode(append(c.head, c.rest...), &f)
			if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want %v with %q", err, c.err, c.says)
			}
			var both *protocol.Mismatch
			if errors.Is(c.err, ErrVersion) && (!errors.As(err, &both) || both.Ours != protocol.Handoff() || both.Theirs != f.Versions()) {
				t.Errorf("the error is %+v", both)
			}
			if err != nil {
				return
			}
			if v, err := f.Agree(); v != c.want || err != nil {
				t.Errorf("agreed on %d, %v; want %d", v, err, c.want)
			}
		})
	}
	// What is announced is understood.
	for _, r := range []protocol.Range{protocol.Handoff(), {Oldest: 1, Newest: 1}, {Oldest: 1, Newest: 9}} {
		var f Frame
		if f.announce(r); f.Versions() != r {
			t.Errorf("%s became %s", r, f.Versions())
		}
	}
}

// hello is one of the release.
func hello(t *testing.T) []byte {
	t.Helper()
	b, err := Append(nil, &Frame{Kind: KindHello, ProtocolVersion: 1, Session: 1})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The usual hop costs no allocation in either direction.
func TestNoAllocs(t *testing.T) {
	f := frames()["hop"]
	var buf []byte
	var back Frame
	if n := testing.AllocsPerRun(100, func() {
		buf, _ = Append(buf[:0], &f)
		_ = Decode(buf, &back)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestReader(t *testing.T) {
	big := Frame{Kind: KindHandoff, Request: 1, Tokens: make([]Token, 20_000)}
	for i := range big.Tokens {
		big.Tokens[i].ID = int32(i)
	}
	var stream []byte
	var want []Frame
	for _, f := range frames() {
		want = append(want, f, big)
	}
	for i := range want {
		var err error
		if stream, err = AppendFramed(stream, &want[i]); err != nil {
			t.Fatal(err)
		}
	}
	for name, src := range map[string]io.Reader{
		"whole": bytes.NewReader(stream),
		"bytes": iotest.OneByteReader(bytes.NewReader(stream)),
		"half":  iotest.HalfReader(bytes.NewReader(stream)),
	} {
		r := NewReader(src)
		var f Frame
		for i := range want {
			if err := r.Next(&f); err != nil {
				t.Fatalf("%s: frame %d: %v", name, i, err)
			}
			if !same(&f, &want[i]) {
				t.Fatalf("%s: frame %d differs", name, i)
			}
		}
		if err := r.Next(&f); err != io.EOF || r.Buffered() != 0 {
			t.Fatalf("%s: end: %v", name, err)
		}
	}
	hop := frames()["hop"]
	one, err := AppendFramed(nil, &hop)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(one); n++ {
		r := NewReader(bytes.NewReader(one[:n]))
		var f Frame
		if err := r.Next(&f); !errors.Is(err, ErrTruncated) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	for prefix, want := range map[string]error{
		"\x00\x00\x00\x00": ErrMalformed,
		"\xff\xff\xff\xff": ErrTooLarge,
		"\x01\x00\x40\x00": ErrTooLarge,
		"\x00\x00\x40\x00": ErrTruncated,
	} {
		var f Frame
		if err := NewReader(strings.NewReader(prefix)).Next(&f); !errors.Is(err, want) {
			t.Errorf("prefix %x: %v, want %v", prefix, err, want)
		}
	}
}

// FuzzFrame holds the decoder to: no panic, and every accepted frame encodes to
// the very same bytes.
func FuzzFrame(f *testing.F) {
	for _, fr := range frames() {
		b, err := Append(nil, &fr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	var used Frame // decoded into again and again, as a link does
	f.Fuzz(func(t *testing.T, b []byte) {
		var fresh Frame
		err := Decode(b, &fresh)
		if err2 := Decode(b, &used); (err == nil) != (err2 == nil) {
			t.Fatalf("fresh: %v, reused: %v", err, err2)
		}
		if err != nil {
			return
		}
		if !same(&fresh, &used) {
			t.Fatalf("fresh %+v\nreused %+v", fresh, used)
		}
		back, err := Append(nil, &fresh)
		if err != nil {
			t.Fatalf("decoded but not encoded: %v", err)
		}
		if !bytes.Equal(back, b) {
			t.Fatalf("decoded\n%x\nencoded\n%x", b, back)
		}
	})
}

func BenchmarkHop(b *testing.B) {
	f := frames()["hop"]
	var buf []byte
	var back Frame
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = Append(buf[:0], &f)
		if err := Decode(buf, &back); err != nil {
			b.Fatal(err)
		}
	}
}
