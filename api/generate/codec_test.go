package generate

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// samples has one event of every shape.
func samples() []*Event {
	return []*Event{
		{Kind: EventAdmitted, Epoch: 1, PromptIDs: []int32{1, 70000, 3}, Replica: "tiny-s-0", Models: []string{"tiny-s", "tiny-l"}},
		{Kind: EventAdmitted, Epoch: math.MaxUint32},
		{Kind: EventTokens, Epoch: 2, Base: 7, Tokens: []TokenEvent{
			{ID: 5, Model: 1, Text: "né"},
			{ID: 6, Text: "", Logprob: -0.25},
			{ID: 9, Text: "x", Bytes: []byte{0xc3}, Logprob: float32(math.Inf(-1)), Top: []TopLogprob{
				{ID: 9, Logprob: -0.5, Text: "x", Bytes: []byte{0xc3}}, {ID: 10, Logprob: -3},
			}},
		}},
		{Kind: EventTokens, Epoch: 2, Turn: true, Owner: 1, State: []byte{1, 2, 3}},
		{Kind: EventFinish, Epoch: 3, Finish: FinishLength, Cached: 64, Tail: "�"},
		{Kind: EventError, Epoch: 3, Err: &Error{Code: CodeUnavailable, Message: "no collaborator", Param: "model", Retryable: true}},
		{Kind: EventPrompt, Epoch: 4, Base: 2, Cached: 1, Tokens: []TokenEvent{{ID: 5, Text: "é"}, {ID: 6, Logprob: -1.5}}},
		{Kind: EventAlive, Epoch: 4},
		{Kind: EventAdmitted, Epoch: 1, PromptIDs: []int32{1}, Models: []string{"s"}, Version: 1<<63 + 5},
		{Kind: EventTokens, Epoch: 2, Alone: true},
	}
}

// same compares events after making nil and empty slices equal.
func same(a, b *Event) bool {
	x, errA := AppendEvent(nil, a)
	y, errB := AppendEvent(nil, b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

func TestEventRoundTrip(t *testing.T) {
	var reused Event
	for _, want := range samples() {
		b, err := AppendEvent([]byte("head"), want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(b, []byte("head")) {
			t.Fatal("dst was overwritten")
		}
		var got Event
		if err := DecodeEvent(b[4:], &got); err != nil {
			t.Fatal(err)
		}
		if !same(want, &got) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if err := DecodeEvent(b[4:], &reused); err != nil || !same(want, &reused) {
			t.Errorf("reused event: %+v (%v), want %+v", reused, err, want)
		}
	}
}

// TestEventGolden pins the format: a change here is a new protocol version.
func TestEventGolden(t *testing.T) {
	want := []string{
		"01" + "01000000" + "03000000" + "010000007011010003000000" + "0800" + hex.EncodeToString([]byte("tiny-s-0")) +
			"02" + "0600" + hex.EncodeToString([]byte("tiny-s")) + "0600" + hex.EncodeToString([]byte("tiny-l")),
		"01" + "ffffffff" + "00000000" + "0000" + "00",
		"02" + "02000000" + "07000000" + "00000000" + "00" + "00" + "00" + "03000000" +
			"05000000" + "01" + "01" + "0300" + "6ec3a9" +
			"06000000" + "00" + "02" + "0000" + "000080be" + "00" +
			"09000000" + "00" + "03" + "0100" + "78" + "0100" + "c3" + "000080ff" + "02" +
			"09000000" + "000000bf" + "0100" + "78" + "0100" + "c3" +
			"0a000000" + "000040c0" + "0000" + "0000",
		"02" + "02000000" + "00000000" + "00000000" + "01" + "01" + "03" + "010203" + "00000000",
		"03" + "03000000" + "02" + "40000000" + "0300" + "efbfbd",
		"04" + "03000000" + "1100" + hex.EncodeToString([]byte("model_unavailable")) + "0f00" +
			hex.EncodeToString([]byte("no collaborator")) + "0500" + hex.EncodeToString([]byte("model")) + "01",
		"05" + "04000000" + "02000000" + "01000000" + "02000000" +
			"05000000" + "00" + "01" + "0200" + "c3a9" + "06000000" + "00" + "02" + "0000" + "0000c0bf" + "00",
		"06" + "04000000",
		"01" + "01000000" + "01000000" + "01000000" + "0000" + "81" + "0100" + "73" + "0500000000000080",
		"02" + "02000000" + "00000000" + "00000000" + "02" + "00" + "00" + "00000000",
	}
	for i, e := range samples() {
		b, err := AppendEvent(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(b); got != want[i] {
			t.Errorf("event %d:\n got %s\nwant %s", i, got, want[i])
		}
	}
}

func TestEventCutAtEveryByte(t *testing.T) {
	for i, e := range samples() {
		b, err := AppendEvent(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		for n := range b {
			var got Event
			if err := DecodeEvent(b[:n], &got); !errors.Is(err, ErrMalformed) {
				t.Fatalf("event %d cut at %d: %v", i, n, err)
			}
		}
		var got Event
		if err := DecodeEvent(append(b, 0), &got); !errors.Is(err, ErrMalformed) {
			t.Errorf("event %d with a trailing byte: %v", i, err)
		}
	}
}

func TestEventRefused(t *testing.T) {
	long := strings.Repeat("a", MaxText+1)
	for name, e := range map[string]*Event{
		"unknown kind":   {Kind: 9},
		"no error":       {Kind: EventError},
		"state":          {Kind: EventTokens, State: make([]byte, MaxState+1)},
		"tokens":         {Kind: EventTokens, Tokens: make([]TokenEvent, MaxBatch+1)},
		"text":           {Kind: EventTokens, Tokens: []TokenEvent{{Text: long}}},
		"token bytes":    {Kind: EventTokens, Tokens: []TokenEvent{{Bytes: []byte(long)}}},
		"alternatives":   {Kind: EventTokens, Tokens: []TokenEvent{{Top: make([]TopLogprob, MaxTop+1)}}},
		"prompt":         {Kind: EventAdmitted, PromptIDs: make([]int32, MaxIDs+1)},
		"models":         {Kind: EventAdmitted, Models: make([]string, MaxModels+1)},
		"whole event":    {Kind: EventTokens, Tokens: manyTokens(MaxBatch, long[:4096])},
		"message length": {Kind: EventError, Err: &Error{Message: long}},
	} {
		if b, err := AppendEvent([]byte("x"), e); err == nil || string(b) != "x" {
			t.Errorf("%s: error %v, %d bytes", name, err, len(b))
		}
	}
	for name, in := range map[string]string{
		"empty":             "",
		"kind 0":            "0000000000",
		"ids over the rest": "0101000000" + "ffffff7f",
		"ids over limit":    "0101000000" + "01001000",
		"negative base":     "0201000000" + "ffffffff" + "00000000" + "000000" + "00000000",
		"turn of 4":         "0201000000" + "00000000" + "00000000" + "040000" + "00000000",
		"state of 65":       "0201000000" + "00000000" + "00000000" + "000041" + strings.Repeat("00", 65) + "00000000",
		"unknown flag":      "0201000000" + "00000000" + "00000000" + "000000" + "01000000" + "0000000000" + "04",
		"finish 0":          "0301000000" + "00" + "00000000" + "0000",
	} {
		b, err := hex.DecodeString(in)
		if err != nil {
			t.Fatal(err)
		}
		var e Event
		if err := DecodeEvent(b, &e); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func manyTokens(n int, text string) []TokenEvent {
	out := make([]TokenEvent, n)
	for i := range out {
		out[i].Text = text
	}
	return out
}

func TestStream(t *testing.T) {
	var buf bytes.Buffer
	w := NewWriter(&buf)
	if err := w.Write(samples()[:2]...); err != nil {
		t.Fatal(err)
	}
	for _, e := range samples()[2:] {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	whole := buf.Bytes()
	r := NewReader(iotest.OneByteReader(bytes.NewReader(whole)))
	for i, want := range samples() {
		got, err := r.Next()
		if err != nil || !same(want, got) {
			t.Fatalf("event %d: %+v, %v", i, got, err)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("end: %v", err)
	}
	for n := range whole {
		r := NewReader(bytes.NewReader(whole[:n]))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if err != io.EOF && err != io.ErrUnexpectedEOF {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	if _, err := NewReader(strings.NewReader("\xff\xff\xff\xff")).Next(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("length over the limit: %v", err)
	}
	broken := errors.New("broken")
	if _, err := NewReader(iotest.ErrReader(broken)).Next(); !errors.Is(err, broken) {
		t.Errorf("reader's error: %v", err)
	}
}

// TestReaderBoundsMemory checks that a length prefix alone does not make the reader allocate it.
func TestReaderBoundsMemory(t *testing.T) {
	r := NewReader(strings.NewReader("\x00\x00\x7f\x00abc"))
	if _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if cap(r.buf) > 2*fillStep {
		t.Errorf("%d bytes taken for 3", cap(r.buf))
	}
}

func TestRequestRoundTrip(t *testing.T) {
	greedy := sampling.Params{TopP: 1, MaxTokens: 5, Logprobs: -1}
	for _, want := range []*Request{
		{ID: math.MaxUint64, Epoch: 1, Deployment: "tiny", Prompt: "a <b> & \u2028", Sampling: greedy},
		{ID: 1, Deployment: "tiny", PromptIDs: []int32{0, 1}, Sampling: greedy, DefaultMaxTokens: true},
		{ID: 1, Deployment: "tiny", Prompt: "x", Sampling: sampling.Params{TopP: 1, Logprobs: 1}, Echo: true, Session: "k", Salt: make([]byte, SaltBytes)},
		{ID: 1, Deployment: "tiny", Prompt: "x", Sampling: sampling.Params{TopP: 1, MaxTokens: 1, StopIDs: []int32{7}}, IgnoreEOS: true},
		{ID: 1, Deployment: "tiny", Prompt: "x", Sampling: greedy, Routing: &routing.Override{Policy: "me", Threshold: new(float64)}},
		{ID: 2, Deployment: "tiny", Chat: true, TemplateArgs: []byte(`{"enable_thinking":false}`), Sampling: greedy,
			Messages: []Message{{Role: "user", Content: ""}, {Role: "assistant", ContentNull: true, ToolCalls: []byte(`[{"id":"c1"}]`)}}, Tools: []byte(`[{"type":"function"}]`),
			Resume: &Resume{PromptIDs: []int32{4}, Tokens: []Token{{ID: 5, Model: 1}}, Owner: 1, State: []byte{9}}},
	} {
		b, err := EncodeRequest(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeRequest(bytes.NewReader(b))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v (%v), want %+v", got, err, want)
		}
	}
}

func TestRequestRefused(t *testing.T) {
	good := func() *Request {
		return &Request{Deployment: "tiny", Prompt: "hi", Sampling: sampling.Params{TopP: 1, MaxTokens: 5}}
	}
	for name, spoil := range map[string]func(*Request){
		"no deployment":   func(r *Request) { r.Deployment = "" },
		"no prompt":       func(r *Request) { r.Prompt = "" },
		"two prompts":     func(r *Request) { r.PromptIDs = []int32{1} },
		"chat as text":    func(r *Request) { r.Chat = true },
		"negative id":     func(r *Request) { r.Prompt, r.PromptIDs = "", []int32{-1} },
		"tools":           func(r *Request) { r.Prompt, r.Chat, r.Messages, r.Tools = "", true, []Message{{}}, []byte("[") },
		"tools of a text": func(r *Request) { r.Tools = []byte("[]") },
		"null with text": func(r *Request) {
			r.Prompt, r.Chat, r.Messages = "", true, []Message{{ContentNull: true, Content: "x"}}
		},
		"routing":           func(r *Request) { v := -1.0; r.Routing = &routing.Override{Threshold: &v} },
		"template args":     func(r *Request) { r.TemplateArgs = []byte("{") },
		"temperature":       func(r *Request) { r.Sampling.Temperature = float32(math.NaN()) },
		"top_p":             func(r *Request) { r.Sampling.TopP = 2 },
		"max tokens":        func(r *Request) { r.Sampling.MaxTokens = 0 },
		"logprobs":          func(r *Request) { r.Sampling.Logprobs = 21 },
		"negative stop id":  func(r *Request) { r.Sampling.StopIDs = []int32{-1} },
		"salt":              func(r *Request) { r.Salt = []byte{1} },
		"session":           func(r *Request) { r.Session = strings.Repeat("k", MaxSession+1) },
		"stop ids":          func(r *Request) { r.Sampling.StopIDs = make([]int32, 65) },
		"resume, no prompt": func(r *Request) { r.Resume = &Resume{} },
		"resume, state":     func(r *Request) { r.Resume = &Resume{PromptIDs: []int32{1}, State: make([]byte, 65)} },
		"resume, model":     func(r *Request) { r.Resume = &Resume{PromptIDs: []int32{1}, Tokens: []Token{{Model: 16}}} },
	} {
		r := good()
		spoil(r)
		if _, err := EncodeRequest(r); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := DecodeRequest(strings.NewReader(strings.Repeat(" ", MaxRequestBytes+1))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	for _, body := range []string{"", "{", "null", "[]", `{"id":-1}`} {
		if _, err := DecodeRequest(strings.NewReader(body)); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// FuzzDecodeEvent checks that hostile bytes neither panic nor decode to an
// event that encodes to something else.
func FuzzDecodeEvent(f *testing.F) {
	for _, e := range samples() {
		b, err := AppendEvent(nil, e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again Event
		if DecodeEvent(b, &e) != nil {
			return
		}
		out, err := AppendEvent(nil, &e)
		if err != nil {
			t.Fatalf("decoded event does not encode: %v", err)
		}
		if err := DecodeEvent(out, &again); err != nil || !same(&e, &again) {
			t.Fatalf("%+v became %+v (%v)", e, again, err)
		}
	})
}

// FuzzEventRoundTrip drives the encoder with arbitrary field values.
func FuzzEventRoundTrip(f *testing.F) {
	f.Add(uint8(2), uint32(1), int32(3), int32(4), uint8(1), "text", []byte("by"), float32(-1), true)
	f.Add(uint8(1), uint32(1), int32(3), int32(4), uint8(1), "replica", []byte{}, float32(0), false)
	f.Add(uint8(3), uint32(1), int32(0), int32(1), uint8(1), "tail", []byte{}, float32(0), false)
	f.Add(uint8(4), uint32(1), int32(0), int32(1), uint8(1), "code", []byte{}, float32(0), true)
	f.Fuzz(func(t *testing.T, kind uint8, epoch uint32, base, id int32, model uint8, text string, raw []byte, lp float32, flag bool) {
		want := &Event{Kind: EventKind(kind), Epoch: epoch}
		switch want.Kind {
		case EventAdmitted:
			want.PromptIDs, want.Replica, want.Models = []int32{base, id}, text, []string{text}
		case EventTokens:
			want.Base, want.Turn, want.Alone, want.Owner, want.State = base, flag, id&1 == 1, model, raw
			want.Tokens = []TokenEvent{{ID: id, Model: model, Text: text, Bytes: raw, Logprob: lp,
				Top: []TopLogprob{{ID: id, Logprob: lp, Text: text, Bytes: raw}}}}
		case EventFinish:
			want.Finish, want.Tail = FinishStop, text
		case EventError:
			want.Err = &Error{Code: text, Message: text, Param: text, Retryable: flag}
		}
		b, err := AppendEvent(nil, want)
		if err != nil {
			return
		}
		var got Event
		if err := DecodeEvent(b, &got); err != nil {
			if base < 0 && want.Kind == EventTokens {
				return
			}
			t.Fatal(err)
		}
		if !same(want, &got) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func BenchmarkAppendEvent(b *testing.B) {
	e := &Event{Kind: EventTokens, Epoch: 1, Base: 10, Tokens: []TokenEvent{{ID: 5, Text: " word"}}}
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := AppendEvent(buf, e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeEvent(b *testing.B) {
	buf, err := AppendEvent(nil, &Event{Kind: EventTokens, Epoch: 1, Base: 10, Tokens: []TokenEvent{{ID: 5, Text: " word"}}})
	if err != nil {
		b.Fatal(err)
	}
	var e Event
	b.ReportAllocs()
	for b.Loop() {
		if err := DecodeEvent(buf, &e); err != nil {
			b.Fatal(err)
		}
	}
}
