package model

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/models"
)

func TestTrioOpensAndChecks(t *testing.T) {
	for _, name := range models.Names() {
		t.Run(name, func(t *testing.T) {
			fsys, _ := models.FS(name)
			k, err := OpenFS(fsys, name)
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			if err := k.Check(); err != nil {
				t.Fatal(err)
			}
			if got := k.Generation.EOS; len(got) != 1 || got[0] != 746 {
				t.Errorf("EOS %v", got)
			}
			if k.Config.VocabSize != 1024 || k.Config.RopeTheta != 10000 || !k.Config.TieEmbeddings {
				t.Errorf("config %+v", k.Config)
			}
		})
	}
}

func TestOpenDirMapsTheSameBytes(t *testing.T) {
	fsys, _ := models.FS("tiny-s")
	a, err := OpenFS(fsys, "tiny-s")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := OpenDir("../../models/tiny-s")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range a.Names() {
		x, _ := a.Tensor(name)
		y, err := b.Tensor(name)
		if err != nil || string(x.Bytes) != string(y.Bytes) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
}
