package generate

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/protocol"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	ours := protocol.Generate()
	for name, c := range map[string]struct {
		accept string
		want   int
		says   string // of the refusal
	}{
		"nothing":        {"", ours.Oldest, ""},
		"anything":       {" */* ", ours.Oldest, ""},
		"this build":     {Accept(), ours.Newest, ""},
		"the oldest":     {ContentType(ours.Oldest), ours.Oldest, ""},
		"newer as well":  {accept(protocol.Range{Oldest: ours.Oldest, Newest: ours.Newest + 3}), ours.Newest, ""},
		"among others":   {"text/html, " + ContentType(ours.Newest) + ";q=0.5, application/json", ours.Newest, ""},
		"too old":        {ContentType(ours.Oldest - 1), 0, "the other is too old"},
		"too new":        {accept(protocol.Range{Oldest: ours.Newest + 1, Newest: ours.Newest + 2}), 0, "the other is too new"},
		"something else": {"text/html", 0, "no range of versions"},
		"version 0":      {mediaPrefix + "0", 0, "no range of versions"},
		"no number":      {mediaPrefix + "x", 0, "no range of versions"},
		"leading zero":   {mediaPrefix + "02", 0, "no range of versions"},
		"negative":       {mediaPrefix + "-2", 0, "no range of versions"},
		"far too large":  {mediaPrefix + strings.Repeat("9", 100), 0, "no range of versions"},
		"garbage":        {";;;,,,\x00", 0, "no range of versions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, refused := Choose(c.accept)
			if got != c.want || (refused != nil) != (c.says != "") {
				t.Fatalf("%d, %+v", got, refused)
			}
			if refused == nil {
				if err := CheckContentType(ContentType(got)); err != nil {
					t.Error(err)
				}
				return
			}
			if refused.Code != CodeVersion || refused.HTTPStatus() != http.StatusNotAcceptable || !strings.Contains(refused.Message, c.says) {
				t.Errorf("refused with %+v, want %q", refused, c.says)
			}
		})
	}
}

func TestCheckContentType(t *testing.T) {
	t.Parallel()
	ours := protocol.Generate()
	for text, says := range map[string]string{
		ContentType(ours.Newest):              "",
		ContentType(ours.Oldest) + "; q=1":    "",
		ContentType(ours.Newest + 1):          "the other is too new",
		ContentType(ours.Oldest - 1):          "the other is too old",
		"application/json":                    "no event stream",
		"":                                    "no event stream",
		mediaPrefix + strings.Repeat("x", 99): "no event stream",
	} {
		if err := CheckContentType(text); (err != nil) != (says != "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}
