package openai

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// docs/api.md lists every parameter that is looked at, every code, and the limits.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	literal := regexp.MustCompile(`"([a-z][a-z_]+)"`)
	names := 0
	for _, file := range []string{"validate.go", "sampling.go", "neutral.go", "tools.go", "routing.go", "errors.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(source), "\n)\n") // past the imports
		for _, m := range literal.FindAllStringSubmatch(body, -1) {
			switch m[1] {
			case "type", "text", "null", "grammar", "structural_tag", "json_object", "invalid_request_error":
				continue // values and parts
			}
			names++
			if !regexp.MustCompile("`[^`]*\\b"+m[1]+"\\b[^`]*`").MatchString(doc) && !slices.Contains([]string{"none", "auto"}, m[1]) {
				t.Errorf("%s: %s is not in docs/api.md", file, m[1])
			}
		}
	}
	if names < 60 {
		t.Errorf("%d names found in the sources", names)
	}
	for _, limit := range []string{
		fmt.Sprintf("| `n` | 1 to %d;", MaxN), fmt.Sprintf("up to %d, of 1 to %d bytes", MaxStops, MaxStopBytes),
		fmt.Sprintf("at most %d ids | none", MaxStopIDs), fmt.Sprintf("%d to %d each", -sampling.MaxBias, sampling.MaxBias)[1:],
		fmt.Sprintf("at most %d,%03d ids", sampling.MaxBiases/1000, sampling.MaxBiases%1000), fmt.Sprintf("at most %d MiB and %d levels", MaxBody>>20, MaxDepth),
		fmt.Sprintf("up to %d strings", MaxPrompts), fmt.Sprintf("0 to %d alternatives", MaxTopLogprobs), fmt.Sprintf("at most %d |", maxIgnored),
		fmt.Sprintf("At most %d bytes", maxEcho), fmt.Sprintf("1 to %d,%03d turns", MaxMessages/1000, MaxMessages%1000),
	} {
		if !strings.Contains(doc, limit) {
			t.Errorf("docs/api.md lacks %q", limit)
		}
	}
}
