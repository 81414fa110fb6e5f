//go:build !linux || !cgo

package nvrtc

import (
	"errors"

	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

// errNoCgo is the reason of every refusal in this build; no Compiler can be made in it.
var errNoCgo = errors.New("built without cgo")

type table struct{}

func newTable(dynlib.Library) (*table, error)         { return nil, errNoCgo }
func (t *table) version() (major, minor int, _ error) { return 0, 0, errNoCgo }
func (t *table) archs() ([]int, error)                { return nil, errNoCgo }
func (t *table) compile(*Program) (Binary, string)    { return Binary{}, errNoCgo.Error() }
