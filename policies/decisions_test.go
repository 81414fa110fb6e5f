package policies_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/sampler"
	"github.com/tokenrouter/tokenrouter/worker/step"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// trioTokenizer loads it once for all tests.
var trioTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	files, _ := models.FS("tiny-s")
	return tokenizer.Load(files)
})

const recordings = "../models/testdata/golden/"

// recorded is one answer of one model: the ids, prompt first, and the logits after each.
type recorded struct {
	prompt, ids []int32
	logits      [][]float32
}

// readRecorded reads tensors written as the golden files are: F32 or I32, little-endian.
func readRecorded(t *testing.T, model string, index int) *recorded {
	t.Helper()
	file, err := os.ReadFile(recordings + model + ".golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(file)
	var head map[string]struct {
		Shape   []int `json:"shape"`
		Offsets []int `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:8+n], &head); err != nil {
		t.Fatal(err)
	}
	words := func(name string) []uint32 {
		h := head[name]
		data := file[8+int(n)+h.Offsets[0] : 8+int(n)+h.Offsets[1]]
		out := make([]uint32, len(data)/4)
		for i := range out {
			out[i] = binary.LittleEndian.Uint32(data[4*i:])
		}
		return out
	}
	r := &recorded{}
	for _, w := range words(fmt.Sprintf("ids%d", index)) {
		r.ids = append(r.ids, int32(w))
	}
	name := fmt.Sprintf("logits%d", index)
	width := head[name].Shape[1]
	for row := range slices.Chunk(words(name), width) {
		z := make([]float32, width)
		for i, w := range row {
			z[i] = math.Float32frombits(w)
		}
		r.logits = append(r.logits, z)
	}
	var texts []struct {
		Prompt []int32 `json:"prompt_ids"`
	}
	text, err := os.ReadFile(recordings + model + ".greedy.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &texts); err != nil {
		t.Fatal(err)
	}
	r.prompt = texts[index].Prompt
	return r
}

// trioText is what the trio's tokenizer tells policies.
func trioText(t testing.TB) *policies.Text {
	t.Helper()
	tok, err := trioTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	return &policies.Text{
		Size: tok.Size(), ThinkStart: 747, ThinkEnd: 748, Bytes: tok.TokenBytes,
		Close: tok.EncodePrompt(nil, "\n</think>\n\n", tokenizer.ParseAll()),
	}
}

// decide runs the sampler over one position as an executor does and asks the policy.
func (r *recorded) decide(p policies.Policy, self policies.ModelID, n int, score *float32) policies.Decision {
	spec := p.Spec()
	row := step.Row{Logprobs: -1, TopK: int32(spec.TopK)}
	if spec.Needs&policies.FeatureEntropy != 0 {
		row.Want |= step.FEntropy
	}
	if spec.Needs&policies.FeatureTopK != 0 {
		row.Want |= step.FTopK
	}
	var s sampler.Sampler
	var out step.Out
	s.Sample(r.logits[len(r.prompt)-1+n], &sampling.Params{}, uint8(self), &row, &out)
	q := &policies.Req{
		Self: self, PromptLen: len(r.prompt), Prompt: r.prompt, Out: r.ids[len(r.prompt) : len(r.prompt)+n],
		Sampling: &sampling.Params{Seed: 1},
	}
	for i := range n {
		k := policies.Entry
		if i%3 == 2 {
			k = 1
		}
		q.Models = append(q.Models, k)
	}
	res := &policies.Result{Token: []int32{out.Token}, Margin: []float32{out.Margin}, Kind: []policies.Kind{policies.Decode}}
	if row.Want&step.FEntropy != 0 {
		res.Entropy, res.LogV = []float32{out.Entropy}, out.LogV
	}
	if row.Want&step.FTopK != 0 {
		var top []policies.TopEntry
		for _, e := range out.Top {
			top = append(top, policies.TopEntry{ID: e.ID, Logit: e.Logit, Logprob: e.Logprob})
		}
		res.Top = [][]policies.TopEntry{top}
	}
	if score != nil {
		res.Score = []float32{*score}
	}
	d := make([]policies.Decision, 1)
	p.Route(&policies.Batch{Reqs: []*policies.Req{q}}, res, d)
	return d[0]
}

// Every policy decides as the reference in testdata/decisions.py does, from the
// same recorded logits and hidden states.
func TestDecisionsOfTheReference(t *testing.T) {
	file, err := os.ReadFile("testdata/decisions.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Policy    string            `json:"policy"`
			Settings  policies.Settings `json:"settings"`
			Self      policies.ModelID  `json:"self"`
			Text      int               `json:"text"`
			Rows      []int             `json:"rows"`
			Scores    []float32         `json:"scores"`
			Decisions []string          `json:"decisions"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(file, &golden); err != nil {
		t.Fatal(err)
	}
	text := trioText(t)
	var texts [2][2]*recorded
	for k, model := range []string{"tiny-s", "tiny-l"} {
		for i := range 2 {
			texts[k][i] = readRecorded(t, model, i)
		}
	}
	seen := map[string]int{}
	for _, c := range golden.Cases {
		c.Settings.Text, c.Settings.Models, c.Settings.Net = text, []string{"tiny-s", "tiny-l"}, "net"
		set, err := policies.New(c.Policy, 2, c.Settings)
		if err != nil {
			t.Fatal(err)
		}
		p := set.For(c.Self)
		for i, n := range c.Rows {
			var score *float32
			if c.Scores != nil {
				score = &c.Scores[i]
			}
			d := texts[c.Self][c.Text].decide(p, c.Self, n, score)
			if got := show(text, d); got != c.Decisions[i] {
				t.Errorf("%s %v on model %d, text %d, position %d: got %s, want %s", c.Policy, c.Settings.Rule, c.Self, c.Text, n, got, c.Decisions[i])
			}
			seen[c.Policy+" "+c.Decisions[i][:2]]++
		}
	}
	for _, name := range []string{"citer", "co-llm", "entropy", "glimp-router", "immediate", "me", "r-stitch", "r-stitch+", "r2r", "random", "request-level", "rule"} {
		if seen[name+" 0k"] == 0 || seen[name+" 1d"]+seen[name+" 1k"] == 0 {
			t.Errorf("%s: the reference has one side only", name)
		}
	}
}

// show writes a decision as the reference does.
func show(text *policies.Text, d policies.Decision) string {
	s := fmt.Sprintf("%d%s", d.To, map[bool]string{true: "k", false: "d"}[d.Keep])
	if len(d.Inject) == 0 {
		return s
	}
	var forced strings.Builder
	for _, id := range d.Inject {
		if id == text.ThinkEnd {
			forced.WriteString("</think>")
			continue
		}
		forced.Write(text.Bytes(id))
	}
	return s + "+" + strings.ReplaceAll(fmt.Sprintf("%q", forced.String()), `\u003c`, "<")
}
