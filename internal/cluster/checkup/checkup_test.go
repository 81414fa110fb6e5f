package checkup

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/doctor"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestClock(t *testing.T) {
	before := time.Date(2026, 5, 1, 12, 0, 0, 500e6, time.UTC)
	after := before.Add(100 * time.Millisecond)
	for _, c := range []struct {
		there  time.Time
		want   time.Duration
		status doctor.Status
	}{
		{before.Truncate(time.Second), 0, doctor.OK},
		{before.Truncate(time.Second).Add(-time.Second), -500 * time.Millisecond, doctor.OK},
		{before.Truncate(time.Second).Add(time.Second), 400 * time.Millisecond, doctor.OK},
		{before.Truncate(time.Second).Add(-10 * time.Second), -9500 * time.Millisecond, doctor.Warn},
		{before.Truncate(time.Second).Add(time.Minute), 59400 * time.Millisecond, doctor.Warn},
		{before.Truncate(time.Second).Add(time.Hour), time.Hour - 600*time.Millisecond, doctor.Fail},
	} {
		d := apart(before, after, c.there)
		check := judgeClock(doctor.Check{Status: doctor.OK}, d)
		if d != c.want || check.Status != c.status || (check.Fix == "") != (c.status == doctor.OK) {
			t.Errorf("%s: %s apart, want %s; %+v", c.there, d, c.want, check)
		}
	}
}

func TestPorts(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	checks := Run(context.Background(), Config{Ports: []Port{
		{Name: "free", Addr: "127.0.0.1:0", UDP: true}, {Name: "tcp", Addr: tcp.Addr().String()}, {Name: "udp", Addr: udp.LocalAddr().String(), UDP: true},
	}})
	if len(checks) != 3 || checks[0].Status != doctor.OK || checks[1].Status != doctor.Warn || checks[2].Status != doctor.Warn {
		t.Errorf("%+v", checks)
	}
}

// What answers, but is no control node, is told from what does not answer.
func TestControl(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	checks := Run(context.Background(), Config{Control: []string{addr}})
	if len(checks) != 2 || checks[0].Status != doctor.OK || checks[1].Status != doctor.Warn {
		t.Errorf("%+v", checks)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	checks = Run(context.Background(), Config{Control: []string{"127.0.0.1:1"}}) // another test may have the listener's port by now
	if len(checks) != 1 || checks[0].Status != doctor.Fail || !strings.Contains(checks[0].Fix, "firewall") {
		t.Errorf("%+v", checks)
	}
}
