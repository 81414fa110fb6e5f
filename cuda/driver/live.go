package driver

import (
	"fmt"
	"strings"
	"sync/atomic"
)

// Live counts open objects of a Driver or a Context, and the bytes they hold. The zero value means that nothing
// leaks.
type Live struct {
	Contexts, DeviceAllocs, HostAllocs, Reservations, Mappings int64
	Streams, Events, Modules, Graphs, GraphExecs               int64
	DeviceBytes, HostBytes                                     int64
}

// String lists what is not zero, or says "nothing".
func (l Live) String() string {
	var out []string
	for _, item := range []struct {
		name  string
		count int64
	}{
		{"contexts", l.Contexts}, {"device allocations", l.DeviceAllocs}, {"host allocations", l.HostAllocs},
		{"reservations", l.Reservations}, {"mappings", l.Mappings}, {"streams", l.Streams}, {"events", l.Events},
		{"modules", l.Modules}, {"graphs", l.Graphs}, {"graph executables", l.GraphExecs},
		{"device bytes", l.DeviceBytes}, {"host bytes", l.HostBytes},
	} {
		if item.count != 0 {
			out = append(out, fmt.Sprintf("%d %s", item.count, item.name))
		}
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

// kind names a counter.
type kind int

const (
	kindContext kind = iota
	kindDeviceAlloc
	kindHostAlloc
	kindReservation
	kindMapping
	kindStream
	kindEvent
	kindModule
	kindGraph
	kindGraphExec
	kindDeviceBytes
	kindHostBytes
	kindCount
)

// counters is Live with atomic fields.
type counters [kindCount]atomic.Int64

func (c *counters) load() Live {
	return Live{
		Contexts: c[kindContext].Load(), DeviceAllocs: c[kindDeviceAlloc].Load(), HostAllocs: c[kindHostAlloc].Load(),
		Reservations: c[kindReservation].Load(), Mappings: c[kindMapping].Load(), Streams: c[kindStream].Load(),
		Events: c[kindEvent].Load(), Modules: c[kindModule].Load(), Graphs: c[kindGraph].Load(),
		GraphExecs: c[kindGraphExec].Load(), DeviceBytes: c[kindDeviceBytes].Load(), HostBytes: c[kindHostBytes].Load(),
	}
}

// count adds n objects of a kind to the context and to the driver.
func (c *Context) count(k kind, n int64) {
	c.live[k].Add(n)
	c.driver.live[k].Add(n)
}
