package executor

import (
	"errors"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

func TestSeqConfigCheck(t *testing.T) {
	all := Info{Vocab: 10, MaxContext: 4, Features: step.FAdjust}
	bare := Info{Vocab: 10, MaxContext: 4, Features: step.Outputs}
	field := func(err error) bool { var f *sampling.FieldError; return errors.As(err, &f) }
	unsupported := func(err error) bool { return errors.Is(err, ErrUnsupported) }
	other := func(err error) bool { return err != nil && !field(err) && !unsupported(err) }
	none := func(err error) bool { return err == nil }
	tests := []struct {
		name      string
		cfg       SeqConfig
		all, bare func(error) bool
	}{
		{"zero", SeqConfig{}, none, none},
		{"neutral", SeqConfig{Sampling: sampling.Params{RepetitionPenalty: 1}, PromptLen: 100}, none, none},
		{"bad temperature", SeqConfig{Sampling: sampling.Params{Temperature: -1}}, field, field},
		{"bias beyond the vocabulary", SeqConfig{Sampling: sampling.Params{LogitBias: []sampling.Bias{{ID: 10}}}}, field, field},
		{"min-p", SeqConfig{Sampling: sampling.Params{MinP: 0.1}}, none, unsupported},
		{"penalty", SeqConfig{Sampling: sampling.Params{PresencePenalty: 1}}, none, unsupported},
		{"minimum length", SeqConfig{Sampling: sampling.Params{MinTokens: 1, MaxTokens: 2, StopIDs: []int32{1}}}, none, unsupported},
		{"negative prompt", SeqConfig{PromptLen: -1}, other, other},
	}
	for _, tc := range tests {
		if err := tc.cfg.Check(&all); !tc.all(err) {
			t.Errorf("%s: error %v", tc.name, err)
		}
		if err := tc.cfg.Check(&bare); !tc.bare(err) {
			t.Errorf("%s without features: error %v", tc.name, err)
		}
	}
}
