package bench

import (
	"bufio"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
)

// Report is the result of a run. Its JSON names are stable. Times are in
// milliseconds where the name ends in _ms, in seconds where it ends in _s.
type Report struct {
	// Command is the command line, filled in by the caller.
	Command string          `json:"command"`
	Build   buildinfo.Build `json:"build"`
	Machine Machine         `json:"machine"`
	// Start is when the measured part began.
	Start time.Time `json:"start"`
	URL   string    `json:"url"`
	Model string    `json:"model"`

	Endpoint Endpoint `json:"endpoint"`
	Prompts  string   `json:"prompts"`
	Stream   bool     `json:"stream"`
	// MaxTokens is 0 when it was not sent.
	MaxTokens   int      `json:"max_tokens"`
	IgnoreEOS   bool     `json:"ignore_eos"`
	Temperature *float64 `json:"temperature"`
	Seed        int64    `json:"seed"`
	// Loop is closed or open. Concurrency is the number of workers, or the bound
	// of the requests in flight. Rate and Arrivals are the open loop's.
	Loop        string   `json:"loop"`
	Concurrency int      `json:"concurrency"`
	Rate        float64  `json:"rate"`
	Arrivals    Arrivals `json:"arrivals"`
	Warmup      int      `json:"warmup_requests"`

	// Interrupted says that the run ended early; requests in flight at that time
	// are counted nowhere.
	Interrupted bool    `json:"interrupted"`
	WallS       float64 `json:"wall_s"`
	// Requests are those that ended; Failed of them failed.
	Requests  int     `json:"requests"`
	Succeeded int     `json:"succeeded"`
	Failed    int     `json:"failed"`
	ErrorRate float64 `json:"error_rate"`

	// Tokens of successes. Those of requests whose tokens nobody counted are not
	// in them.
	OutputTokens int64 `json:"output_tokens"`
	InputTokens  int64 `json:"input_tokens"`
	// CountedByServer is how many successes had a usage count; Uncounted how many
	// had neither that nor a stream.
	CountedByServer int `json:"counted_by_server"`
	Uncounted       int `json:"uncounted"`
	// TokensPerPiece is output tokens over pieces that carry a token, 0 without
	// streaming.
	TokensPerPiece float64 `json:"tokens_per_piece"`
	// PiecesPerRead is pieces that carry a token over reads that brought some, 0
	// without streaming. Above 1 the server, or the network, was faster than this
	// client read, and some inter-token times are 0.
	PiecesPerRead float64        `json:"pieces_per_read"`
	Finish        map[string]int `json:"finish_reasons"`

	OutputTokensPerS float64 `json:"output_tokens_per_s"`
	RequestsPerS     float64 `json:"requests_per_s"`

	PerUser      *Spread `json:"per_user_tokens_per_s"`
	TTFT         *Spread `json:"ttft_ms"`
	InterToken   *Spread `json:"inter_token_ms"`
	PerToken     *Spread `json:"time_per_output_token_ms"`
	Latency      *Spread `json:"latency_ms"`
	StartDelay   *Spread `json:"start_delay_ms"`
	InputLength  *Spread `json:"input_tokens_per_request"`
	OutputLength *Spread `json:"output_tokens_per_request"`

	// Routing is nil when the server does not say which model wrote a token.
	Routing  *Routing   `json:"routing"`
	Failures []Failures `json:"errors"`
}

// Routing says which models wrote the tokens.
type Routing struct {
	Policy string `json:"policy"`
	// Requests are the successes that have this.
	Requests int `json:"requests"`
	// LargeShare is the share of tokens that the entry model did not write.
	LargeShare float64 `json:"large_share"`
	// Models are in the deployment's order, the entry model first.
	Models []ModelTokens `json:"models"`
}

// ModelTokens is what one model wrote.
type ModelTokens struct {
	Name   string  `json:"name"`
	Tokens int64   `json:"tokens"`
	Share  float64 `json:"share"`
}

// Machine is the one that the benchmark ran on, which need not be the server's.
type Machine struct {
	// CPU is the processor's name, empty if it is not known.
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
}

// report describes what has been added since start.
func (t *tally) report(c *Config, start time.Time) *Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &Report{
		Build: buildinfo.Current(), Machine: thisMachine(), Start: start.UTC().Round(time.Millisecond),
		URL: c.URL, Model: c.Model, Endpoint: c.Endpoint, Prompts: c.Prompts.Source, Stream: c.Stream,
		MaxTokens: c.MaxTokens, IgnoreEOS: c.IgnoreEOS, Temperature: c.Temperature, Seed: c.Seed,
		Loop: "closed", Concurrency: c.Concurrency, Rate: c.Rate, Warmup: c.Warmup,
		WallS:    t.last.Sub(t.first).Seconds(),
		Requests: t.succeeded + t.failed, Succeeded: t.succeeded, Failed: t.failed,
		OutputTokens: t.output, InputTokens: t.input, CountedByServer: t.counted, Uncounted: t.uncounted,
		Finish: t.finish, Failures: t.failures.sorted(),
		PerUser: t.speed.spread(), TTFT: t.ttft.spread().times(1e3), InterToken: t.gap.spread().times(1e3),
		PerToken: t.perToken.spread().times(1e3), Latency: t.latency.spread().times(1e3),
		InputLength: t.inputs.spread(), OutputLength: t.outputs.spread(),
	}
	if c.Rate > 0 {
		r.Loop, r.Arrivals, r.StartDelay = "open", c.Arrivals, t.delay.spread().times(1e3)
	}
	r.ErrorRate = ratio(float64(t.failed), float64(r.Requests))
	r.TokensPerPiece = ratio(float64(t.streamedTokens), float64(t.pieces))
	r.PiecesPerRead = ratio(float64(t.pieces), float64(t.reads))
	r.OutputTokensPerS = ratio(float64(t.output), r.WallS)
	r.RequestsPerS = ratio(float64(t.succeeded), r.WallS)
	if t.extended > 0 {
		r.Routing = t.routingReport()
	}
	return r
}

func (t *tally) routingReport() *Routing {
	out := &Routing{Policy: t.policy, Requests: t.extended, LargeShare: ratio(float64(t.large), float64(t.routed))}
	for _, name := range t.models {
		n := t.byModel[name]
		out.Models = append(out.Models, ModelTokens{Name: name, Tokens: n, Share: ratio(float64(n), float64(t.routed))})
	}
	return out
}

// ratio is a/b, 0 if b is not positive.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// times scales all values of a spread.
func (s *Spread) times(k float64) *Spread {
	if s == nil {
		return nil
	}
	out := *s
	for _, v := range []*float64{&out.Mean, &out.P50, &out.P90, &out.P99, &out.Max} {
		*v *= k
	}
	return &out
}

func thisMachine() Machine {
	return Machine{CPU: cpuName(), Cores: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH}
}

// cpuName reads the processor's name where Linux has it.
func cpuName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, found := strings.Cut(lines.Text(), ":")
		if found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
