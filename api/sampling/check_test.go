package sampling

import (
	"errors"
	"math"
	"testing"
)

func TestCheck(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	tests := []struct {
		field string // empty: no error
		p     Params
	}{
		{"", Params{}},
		{"", Params{TopP: 1, MaxTokens: 1, Logprobs: -1}},
		{"", Params{Temperature: 1e6, TopP: 1, TopK: math.MaxInt32, MinP: 1, Logprobs: 20, MaxTokens: math.MaxInt32, MinTokens: math.MaxInt32}},
		{"", Params{RepetitionPenalty: 0.01, FrequencyPenalty: -2, PresencePenalty: 2}},
		{"", Params{RepetitionPenalty: 100}},
		{"", Params{LogitBias: []Bias{{0, -100}, {9, 100}}, StopIDs: []int32{10, 1 << 30}}},
		{"temperature", Params{Temperature: -1}},
		{"temperature", Params{Temperature: nan}},
		{"temperature", Params{Temperature: inf}},
		{"top_p", Params{TopP: 1.5}},
		{"top_p", Params{TopP: nan}},
		{"min_p", Params{MinP: -0.1}},
		{"min_p", Params{MinP: nan}},
		{"frequency_penalty", Params{FrequencyPenalty: 2.1}},
		{"presence_penalty", Params{PresencePenalty: nan}},
		{"repetition_penalty", Params{RepetitionPenalty: -1}},
		{"repetition_penalty", Params{RepetitionPenalty: 0.001}},
		{"repetition_penalty", Params{RepetitionPenalty: inf}},
		{"repetition_penalty", Params{RepetitionPenalty: nan}},
		{"top_k", Params{TopK: -1}},
		{"max_tokens", Params{MaxTokens: -1}},
		{"min_tokens", Params{MinTokens: -1}},
		{"min_tokens", Params{MinTokens: 10, MaxTokens: 5}},
		{"logprobs", Params{Logprobs: -2}},
		{"logprobs", Params{Logprobs: 21}},
		{"stop_token_ids", Params{StopIDs: make([]int32, 65)}},
		{"stop_token_ids", Params{StopIDs: []int32{1, -1}}},
		{"logit_bias", Params{LogitBias: make([]Bias, 1025)}},
		{"logit_bias", Params{LogitBias: []Bias{{-1, 1}}}},
		{"logit_bias", Params{LogitBias: []Bias{{10, 1}}}},
		{"logit_bias", Params{LogitBias: []Bias{{2, 1}, {1, 1}}}},
		{"logit_bias", Params{LogitBias: []Bias{{2, 1}, {2, 1}}}},
		{"logit_bias", Params{LogitBias: []Bias{{2, 101}}}},
		{"logit_bias", Params{LogitBias: []Bias{{2, nan}}}},
	}
	for _, tc := range tests {
		err := tc.p.Check(10)
		var f *FieldError
		switch {
		case tc.field == "" && err != nil:
			t.Errorf("%+v: %v", tc.p, err)
		case tc.field != "" && (!errors.As(err, &f) || f.Field != tc.field):
			t.Errorf("%+v: error %v, want one of %s", tc.p, err, tc.field)
		}
	}
	if err := (&Params{LogitBias: []Bias{{1 << 30, 1}}}).Check(0); err != nil {
		t.Errorf("no vocabulary: %v", err)
	}
}

func TestWhatIsOn(t *testing.T) {
	tests := []struct {
		p                  Params
		penalizes, adjusts bool
	}{
		{Params{}, false, false},
		{Params{RepetitionPenalty: 1, MinP: 0.5, StopIDs: []int32{1}}, false, false},
		{Params{RepetitionPenalty: 1.1}, true, true},
		{Params{FrequencyPenalty: -1}, true, true},
		{Params{PresencePenalty: 1}, true, true},
		{Params{LogitBias: []Bias{{1, 1}}}, false, true},
		{Params{MinTokens: 1}, false, false},
		{Params{MinTokens: 1, StopIDs: []int32{1}}, false, true},
	}
	for _, tc := range tests {
		if got := tc.p.Penalizes(); got != tc.penalizes {
			t.Errorf("%+v: penalizes %v", tc.p, got)
		}
		if got := tc.p.Adjusts(); got != tc.adjusts {
			t.Errorf("%+v: adjusts %v", tc.p, got)
		}
	}
}
