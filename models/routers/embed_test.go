package routers

import (
	"io/fs"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/router"
)

// TestShipped opens every net.
func TestShipped(t *testing.T) {
	sidecars, err := fs.Glob(FS(), "*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(sidecars) != len(Names()) {
		t.Errorf("%d sidecars and the nets %v", len(sidecars), Names())
	}
	for _, name := range Names() {
		c, err := router.ReadFS(FS(), name)
		if err != nil {
			t.Error(err)
			continue
		}
		if want := c.Model + "-" + string(c.Kind); name != want {
			t.Errorf("%s is for %s and of kind %s: expected the name %s", name, c.Model, c.Kind, want)
		}
		t.Logf("%v, %d bytes", c, c.Fold().Bytes())
	}
	if !slices.IsSorted(Names()) {
		t.Error(Names())
	}
}
