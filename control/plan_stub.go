package control

import (
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

func plan(*state.State, time.Time) *cluster.Place { return nil }
