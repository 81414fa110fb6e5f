package handoff

import (
	"fmt"
	"math"
	"unicode"
	"unicode/utf8"

	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// check holds f against the limits and ranges of its kind. Encoder and decoder
// share it, so that what one lets out the other lets in.
func check(f *Frame) error {
	switch f.Kind {
	case KindHello:
		return checkHello(f)
	case KindAck:
		return checkOnly(f, Frame{Ack: f.Ack, Credits: f.Credits})
	case KindGroup:
		if f.Live < 0 {
			return malformed(f, "live is %d", f.Live)
		}
		return checkOnly(f, Frame{Live: f.Live, StepMicros: f.StepMicros})
	case KindNack:
		if f.Known < 0 {
			return malformed(f, "known is %d", f.Known)
		}
		if err := checkOnly(f, Frame{Known: f.Known}); err != nil {
			return err
		}
	case KindRelease:
		if err := checkName(f, "code", f.Code); err != nil {
			return err
		}
		if err := checkOnly(f, Frame{Done: f.Done, Code: f.Code}); err != nil {
			return err
		}
	case KindHandoff, KindProgress:
		if err := checkTokens(f); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: %d", ErrKind, f.Kind)
	}
	if f.From >= MaxModels || f.To >= MaxModels {
		return malformed(f, "from model %d to model %d", f.From, f.To)
	}
	if f.Done > DoneError {
		return malformed(f, "done is %d", f.Done)
	}
	return nil
}

func checkHello(f *Frame) error {
	if _, err := f.Agree(); err != nil {
		return err
	}
	if f.OldestVersion == f.ProtocolVersion {
		return malformed(f, "the oldest version is the newest one, and is named all the same")
	}
	if f.Session == 0 {
		return malformed(f, "session is 0")
	}
	if err := checkName(f, "replica", f.Replica); err != nil {
		return err
	}
	if err := checkName(f, "model", f.Model); err != nil {
		return err
	}
	return checkOnly(f, Frame{
		ProtocolVersion: f.ProtocolVersion, OldestVersion: f.OldestVersion, Replica: f.Replica, Model: f.Model,
		Session: f.Session, PeerSession: f.PeerSession, Ack: f.Ack, Credits: f.Credits,
	})
}

// checkOnly refuses fields that want lacks. Only fields that some kind carries
// and that could be lost without notice are compared; the turn's own fields are
// free for all turn frames.
func checkOnly(f *Frame, want Frame) error {
	turn := f.Kind >= KindHandoff && f.Kind <= KindRelease
	numbered := turn || f.Kind == KindGroup
	switch {
	case len(f.Tokens) > 0, len(f.Logprobs) > 0, len(f.Seen) > 0, len(f.State) > 0,
		len(f.Blob) > 0, f.First != nil, f.Base != 0:
		return malformed(f, "it carries tokens or routing state")
	case !numbered && f.Seq != 0:
		return malformed(f, "it has a number")
	case !turn && (f.Request != 0 || f.Epoch != 0 || f.Hop != 0 || f.From != 0 || f.To != 0):
		return malformed(f, "it names a turn")
	case f.Done != want.Done, f.Known != want.Known, f.Code != want.Code,
		f.ProtocolVersion != want.ProtocolVersion, f.OldestVersion != want.OldestVersion, f.Replica != want.Replica, f.Model != want.Model,
		f.Session != want.Session, f.PeerSession != want.PeerSession,
		f.Ack != want.Ack, f.Credits != want.Credits,
		f.Live != want.Live, f.StepMicros != want.StepMicros:
		return malformed(f, "it carries a field of another kind")
	}
	return nil
}

func checkTokens(f *Frame) error {
	switch {
	case len(f.Tokens) > MaxTokens:
		return tooLarge(f, "tokens", len(f.Tokens))
	case len(f.Seen) > MaxModels:
		return tooLarge(f, "seen", len(f.Seen))
	case len(f.State) > MaxState:
		return tooLarge(f, "state", len(f.State))
	case len(f.Blob) > MaxBlob:
		return tooLarge(f, "blob", len(f.Blob))
	case f.Base < 0 || int64(f.Base)+int64(len(f.Tokens)) > math.MaxInt32:
		return malformed(f, "base is %d", f.Base)
	case len(f.Logprobs) > 0 && len(f.Logprobs) != len(f.Tokens):
		return malformed(f, "%d log-probabilities for %d tokens", len(f.Logprobs), len(f.Tokens))
	case f.Known != 0 || f.Code != "" || f.ProtocolVersion != 0 || f.OldestVersion != 0 || f.Replica != "" || f.Model != "" ||
		f.Session != 0 || f.PeerSession != 0 || f.Ack != 0 || f.Credits != 0 || f.Live != 0 || f.StepMicros != 0:
		return malformed(f, "it carries a field of another kind")
	case f.Kind == KindProgress && flagsOf(f)&^progressFlags != 0:
		return malformed(f, "progress with done, blob or first")
	}
	for _, t := range f.Tokens {
		if t.ID < 0 || t.Model >= MaxModels {
			return malformed(f, "token %d of model %d", t.ID, t.Model)
		}
	}
	for _, n := range f.Seen {
		if n < 0 {
			return malformed(f, "seen is %d", n)
		}
	}
	if f.First != nil {
		if err := checkFirst(f); err != nil {
			return err
		}
	}
	return checkLogprobs(f)
}

func checkFirst(f *Frame) error {
	p := &f.First.Sampling
	if err := checkName(f, "deployment", f.First.Deployment); err != nil {
		return err
	}
	if err := checkName(f, "entry", f.First.Entry); err != nil {
		return err
	}
	switch {
	case f.Base != 0:
		return malformed(f, "a first hand-off with base %d", f.Base)
	case f.First.PromptLen < 0 || int(f.First.PromptLen) > len(f.Tokens):
		return malformed(f, "prompt length is %d of %d tokens", f.First.PromptLen, len(f.Tokens))
	case len(p.StopIDs) > sampling.MaxStopIDs:
		return tooLarge(f, "stop ids", len(p.StopIDs))
	case len(p.LogitBias) > sampling.MaxBiases:
		return tooLarge(f, "biases", len(p.LogitBias))
	}
	if err := p.Check(0); err != nil {
		return malformed(f, "%v", err)
	}
	if err := f.First.Override.Check(); err != nil {
		return malformed(f, "%v", err)
	}
	if o := f.First.Override; o != nil && !validName(o.Policy) {
		return malformed(f, "the policy is not printable text")
	}
	return nil
}

func checkLogprobs(f *Frame) error {
	for i := range f.Logprobs {
		l := &f.Logprobs[i]
		if len(l.Top) > sampling.MaxLogprobs {
			return tooLarge(f, "alternatives", len(l.Top))
		}
		if l.Logprob != l.Logprob {
			return malformed(f, "log-probability is not a number")
		}
		for _, t := range l.Top {
			if t.ID < 0 || t.Logprob != t.Logprob {
				return malformed(f, "alternative %d with log-probability %g", t.ID, t.Logprob)
			}
		}
	}
	return nil
}

func checkName(f *Frame, field, s string) error {
	if len(s) > MaxName {
		return tooLarge(f, field, len(s))
	}
	if !validName(s) {
		return malformed(f, "%s is not printable text", field)
	}
	return nil
}

func malformed(f *Frame, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrMalformed, f.Kind, fmt.Sprintf(format, args...))
}

func tooLarge(f *Frame, field string, n int) error {
	return fmt.Errorf("%w: %s: %s is %d long", ErrTooLarge, f.Kind, field, n)
}

// String names the kind for logs.
func (k Kind) String() string {
	switch k {
	case KindHello:
		return "hello"
	case KindHandoff:
		return "handoff"
	case KindProgress:
		return "progress"
	case KindNack:
		return "nack"
	case KindRelease:
		return "release"
	case KindAck:
		return "ack"
	case KindGroup:
		return "group"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// validName reports whether s may be shown in a log as it is.
func validName(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}
