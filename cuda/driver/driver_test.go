package driver_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
)

func TestLoadErrors(t *testing.T) {
	tests := []struct {
		name string
		o    drivertest.Options
		prep func(*drivertest.Fake)
		want error
	}{
		{"old version", drivertest.Options{Version: 11080}, nil, driver.ErrOldDriver},
		{"missing symbol", drivertest.Options{Without: []string{"cuLaunchKernelEx"}}, nil, driver.ErrOldDriver},
		{"no device at init", drivertest.Options{Devices: -1}, nil, driver.ErrNoDevice},
		{"stub library", drivertest.Options{}, func(f *drivertest.Fake) { f.Fail("cuInit", 1, 34) }, driver.ErrNoDriver},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := drivertest.New(t, tt.o)
			if tt.prep != nil {
				tt.prep(f)
			}
			_, err := f.Load()
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestOldDriverError(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Version: 11080})
	_, err := f.Load()
	var old *driver.OldDriverError
	if !errors.As(err, &old) || old.Have != 11080 || old.Need != driver.MinVersion {
		t.Errorf("got %#v", err)
	}
}

func TestLoadFileMissing(t *testing.T) {
	_, err := driver.LoadFile("/nonexistent/libcuda.so.1")
	if !errors.Is(err, driver.ErrNoDriver) {
		t.Errorf("got %v, want ErrNoDriver", err)
	}
}

func TestDevice(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Devices: 2, Memory: 7 << 30})
	d, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	if d.DeviceCount() != 2 || d.VersionText() != "13.0" {
		t.Errorf("count %d version %s", d.DeviceCount(), d.VersionText())
	}
	for _, bad := range []int{-1, 2} {
		if _, err := d.Device(bad); !errors.Is(err, driver.ErrNoDevice) {
			t.Errorf("device %d: got %v", bad, err)
		}
	}
	v, err := d.Device(1)
	if err != nil {
		t.Fatal(err)
	}
	name, _ := v.Name()
	uuid, _ := v.UUID()
	arch, _ := v.Arch()
	memory, _ := v.TotalMemory()
	pci, _ := v.PCIBusID()
	got := []any{name, uuid, arch, memory, pci}
	want := []any{"Fake GPU 1", "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1", "sm_90a", uint64(7 << 30), "0000:02:00.0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	peer, _ := d.Device(0)
	if can, err := v.CanAccessPeer(peer); err != nil || !can {
		t.Errorf("peer: %v %v", can, err)
	}
	if bw := v.PeakBandwidth(); bw < 4.9e12 || bw > 4.95e12 {
		t.Errorf("bandwidth %g", bw)
	}
}

func TestMemory(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Memory: 1 << 20})
	c := f.MustContext(t, 0)
	if _, err := c.Alloc(0); !errors.Is(err, driver.ErrBounds) {
		t.Errorf("alloc 0: %v", err)
	}
	if _, err := c.Alloc(2 << 20); !driver.IsOutOfMemory(err) || driver.IsSticky(err) {
		t.Errorf("alloc too much: %v", err)
	}
	p, err := c.Alloc(1024)
	if err != nil {
		t.Fatal(err)
	}
	in := []uint32{1, 2, 3, 0xffffffff}
	if err := c.Write(p, driver.Bytes(in)); err != nil {
		t.Fatal(err)
	}
	out := make([]uint32, 4)
	if err := c.Read(driver.Bytes(out), p); err != nil || !slices.Equal(in, out) {
		t.Errorf("read %v, %v", out, err)
	}
	if free, total, err := c.Memory(); err != nil || total-free != 1024 {
		t.Errorf("free %d of %d, %v", free, total, err)
	}
	if live := c.Live(); live.DeviceBytes != 1024 || live.DeviceAllocs != 1 {
		t.Errorf("live: %v", live)
	}
	if err := c.Close(); !errors.Is(err, driver.ErrInUse) {
		t.Errorf("close while in use: %v", err)
	}
	if err := c.Free(p); err != nil {
		t.Fatal(err)
	}
	calls := f.Count("cuMemFree_v2")
	if err := c.Free(p); !errors.Is(err, driver.ErrClosed) || f.Count("cuMemFree_v2") != calls {
		t.Errorf("double free: %v", err)
	}
	if live := c.Driver().Live(); live != (driver.Live{Contexts: 1}) {
		t.Errorf("live at the end: %v", live)
	}
}

func TestHostMemory(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{})
	c := f.MustContext(t, 0)
	m, err := c.HostAlloc(4096, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := driver.HostSlice[uint64](m, 4, 1); !errors.Is(err, driver.ErrBounds) {
		t.Errorf("misaligned slice: %v", err)
	}
	if _, err := driver.HostSlice[uint64](m, 4088, 2); !errors.Is(err, driver.ErrBounds) {
		t.Errorf("slice past the end: %v", err)
	}
	flags, err := driver.HostSlice[uint64](m, 4088, 1)
	if err != nil {
		t.Fatal(err)
	}
	flags[0] = 42
	s, err := c.NewStream(0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CopyToDevice(p, m, 4088, 9); !errors.Is(err, driver.ErrBounds) {
		t.Errorf("copy past the end: %v", err)
	}
	err = errors.Join(s.Set8(p, 7, 64), s.CopyToDevice(p, m, 4088, 8), s.Copy(p+8, p, 8), s.Set32(p+16, 0x01020304, 2),
		s.CopyToHost(m, 0, p, 32), s.Synchronize())
	if err != nil {
		t.Fatal(err)
	}
	got := m.Bytes()[:32]
	if binary.LittleEndian.Uint64(got) != 42 || binary.LittleEndian.Uint64(got[8:]) != 42 ||
		binary.LittleEndian.Uint32(got[20:]) != 0x01020304 || got[24] != 7 {
		t.Errorf("got %v", got)
	}
	if err := errors.Join(c.Free(p), s.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if m.Bytes() != nil || m.Close() == nil || s.Close() == nil || s.Synchronize() == nil {
		t.Errorf("closed objects are still usable")
	}
}

func TestHostAllocUndone(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{})
	c := f.MustContext(t, 0)
	f.Fail("cuMemHostGetDevicePointer_v2", 1, driver.CodeInvalidValue)
	if _, err := c.HostAlloc(64, false); err == nil {
		t.Error("no error")
	}
	if f.Open().HostAllocs != 0 || c.Live().HostAllocs != 0 {
		t.Error("host memory left behind")
	}
}

type addParams struct {
	X, Y uint64
	N    int32
	_    int32
}

// loaded is a stream and a kernel on the fake, closed at the test's end.
func loaded(t *testing.T, c *driver.Context, kernel string) (*driver.Stream, *driver.Function) {
	t.Helper()
	s, err := c.NewStream(-1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.LoadModule([]byte("image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), s.Close()); err != nil {
			t.Log(err)
		}
	})
	fn, err := m.Function(kernel)
	if err != nil {
		t.Fatal(err)
	}
	return s, fn
}

func TestLaunch(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes int
	}{{"sizes unknown", 0}, {"sizes known", int(unsafe.Sizeof(addParams{}))}} {
		t.Run(tt.name, func(t *testing.T) {
			f := drivertest.New(t, drivertest.Options{ParamBytes: tt.bytes})
			s, fn := loaded(t, f.MustContext(t, 0), "add")
			l := &driver.Launch{
				Grid: driver.Dim{4, 2, 1}, Block: driver.X(128), Cluster: driver.Dim{2, 1, 1}, SharedBytes: 16384, PDL: true,
			}
			if err := driver.LaunchWith(s, fn, l, &addParams{X: 0x1122334455667788, N: -3}); err != nil {
				t.Fatal(err)
			}
			all := f.Launches()
			if len(all) != 1 {
				t.Fatalf("%d launches", len(all))
			}
			got := all[0]
			if got.Kernel != "add" || got.Grid != l.Grid || got.Block != l.Block || got.Cluster != l.Cluster ||
				got.SharedBytes != 16384 || !got.PDL || got.Cooperative || got.Captured || got.Stream != s.Handle() {
				t.Errorf("got %+v", got)
			}
			if binary.LittleEndian.Uint64(got.Params) != 0x1122334455667788 || int32(binary.LittleEndian.Uint32(got.Params[16:])) != -3 {
				t.Errorf("params %x", got.Params[:24])
			}
			if slices.ContainsFunc(got.Params[24:], func(b byte) bool { return b != 0 }) {
				t.Error("padding of the block is not zero")
			}
		})
	}
}

func TestLaunchRefused(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{ParamBytes: 8})
	s, fn := loaded(t, f.MustContext(t, 0), "k")
	value := uint64(1)
	good := driver.Launch{Grid: driver.X(1), Block: driver.X(32)}
	tests := []struct {
		name   string
		change func(*driver.Launch)
		want   error
	}{
		{"empty grid", func(l *driver.Launch) { l.Grid[1] = 0 }, driver.ErrGeometry},
		{"grid y too large", func(l *driver.Launch) { l.Grid[1] = 65536 }, driver.ErrGeometry},
		{"empty block", func(l *driver.Launch) { l.Block[0] = 0 }, driver.ErrGeometry},
		{"block too large", func(l *driver.Launch) { l.Block = driver.Dim{32, 33, 1} }, driver.ErrGeometry},
		{"block overflows", func(l *driver.Launch) { l.Block = driver.Dim{1 << 31, 1 << 31, 4} }, driver.ErrGeometry},
		{"cluster does not divide", func(l *driver.Launch) { l.Cluster = driver.Dim{2, 1, 1} }, driver.ErrGeometry},
	}
	for _, tt := range tests {
		l := good
		tt.change(&l)
		if err := driver.LaunchWith(s, fn, &l, &value); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
	if err := driver.LaunchWith(s, fn, &good, &addParams{}); !errors.Is(err, driver.ErrParams) {
		t.Errorf("wrong size: %v", err)
	}
	if err := s.LaunchRaw(fn, &good, nil, 0); !errors.Is(err, driver.ErrParams) {
		t.Errorf("no params: %v", err)
	}
	if n := len(f.Launches()); n != 0 {
		t.Errorf("%d launches reached the driver", n)
	}
	big := good
	big.SharedBytes = 100 << 10
	if err := driver.LaunchWith(s, fn, &big, &value); err == nil {
		t.Error("shared memory beyond 48 KiB without SetMaxSharedBytes was accepted")
	}
	if err := fn.SetMaxSharedBytes(100 << 10); err != nil {
		t.Fatal(err)
	}
	if err := driver.LaunchWith(s, fn, &big, &value); err != nil {
		t.Error(err)
	}
}

func TestKernelLookup(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{})
	c := f.MustContext(t, 0)
	m, err := c.LoadModule([]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	f.MissingKernel("absent")
	var e *driver.Error
	if _, err := m.Function("absent"); !errors.As(err, &e) || e.Code != 500 {
		t.Errorf("got %v", err)
	}
	fn, err := m.Function("present")
	if err != nil {
		t.Fatal(err)
	}
	if _, known := fn.ParamBytes(); known {
		t.Error("parameter size claimed to be known")
	}
	r, err := fn.Resources()
	if err != nil || r.Registers != 32 || r.LocalBytes != 0 || r.BinaryVersion != 90 || r.MaxThreads != 1024 {
		t.Errorf("resources %+v, %v", r, err)
	}
	if n, err := fn.BlocksPerSM(256, 0); err != nil || n != 8 {
		t.Errorf("occupancy %d, %v", n, err)
	}
	if p, n, err := m.Global("counter"); err != nil || p == 0 || n == 0 {
		t.Errorf("global %v %v %v", p, n, err)
	}
	if _, err := c.LoadModule(nil); !errors.Is(err, driver.ErrBounds) {
		t.Errorf("empty image: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestReservation(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Devices: 2})
	c := f.MustContext(t, 0)
	peer := f.MustContext(t, 1)
	granule, err := c.Granule()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reserve(granule + 1); !errors.Is(err, driver.ErrBounds) {
		t.Errorf("odd size: %v", err)
	}
	r, err := c.Reserve(4 * granule)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Map(granule, 2*granule, peer.Device()); err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][2]uint64{{0, 0}, {1, granule}, {0, 2 * granule}, {2 * granule, granule}, {4 * granule, granule}, {3 * granule, 2 * granule}, {^uint64(0) / granule * granule, granule}} {
		if err := r.Map(bad[0], bad[1]); !errors.Is(err, driver.ErrBounds) {
			t.Errorf("map %v: %v", bad, err)
		}
	}
	if err := c.Write(r.Base()+driver.Ptr(granule), []byte{1, 2, 3}); err != nil {
		t.Error(err)
	}
	f.Fail("cuMemSetAccess", 1, driver.CodeInvalidValue)
	if err := r.Map(0, granule); err == nil {
		t.Error("failed access was accepted")
	}
	if n := f.Open().Mappings; n != 1 {
		t.Errorf("%d mappings open after a failed one", n)
	}
	if err := r.Unmap(granule); err != nil {
		t.Error(err)
	}
	if err := r.Unmap(granule); !errors.Is(err, driver.ErrBounds) {
		t.Errorf("second unmap: %v", err)
	}
	if err := errors.Join(r.Map(0, granule), r.Map(3*granule, granule), r.Close()); err != nil {
		t.Error(err)
	}
	if r.Map(0, granule) == nil || r.Close() == nil {
		t.Error("closed reservation still works")
	}
}

func TestPeers(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Devices: 2})
	a, b := f.MustContext(t, 0), f.MustContext(t, 1)
	if err := errors.Join(a.EnablePeer(b), a.EnablePeer(b), b.EnablePeer(a)); err != nil {
		t.Error(err)
	}
	if err := a.EnablePeer(a); err == nil {
		t.Error("a device became its own peer")
	}
	s, _ := loaded(t, a, "k")
	p, errP := a.Alloc(16)
	q, errQ := b.Alloc(16)
	if err := errors.Join(errP, errQ, s.Set8(p, 3, 16), s.CopyPeer(q, b, p, a, 16), s.Synchronize()); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 16)
	if err := b.Read(out, q); err != nil || out[15] != 3 {
		t.Errorf("got %v, %v", out, err)
	}
	if err := errors.Join(a.Free(p), b.Free(q)); err != nil {
		t.Error(err)
	}
}

// Any goroutine may call, because each call sets its context: many on two devices at once.
func TestAnyGoroutine(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Devices: 2})
	contexts := []*driver.Context{f.MustContext(t, 0), f.MustContext(t, 1)}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			c := contexts[i%2]
			for range 50 {
				p, err := c.Alloc(64)
				if err != nil {
					t.Error(err)
					return
				}
				if err := c.Free(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for _, c := range contexts {
		if free, total, err := c.Memory(); err != nil || free != total {
			t.Errorf("free %d of %d, %v", free, total, err)
		}
	}
}

func TestLiveString(t *testing.T) {
	if got := (driver.Live{}).String(); got != "nothing" {
		t.Error(got)
	}
	if got := (driver.Live{Streams: 2, DeviceBytes: 5}).String(); got != "2 streams, 5 device bytes" {
		t.Error(got)
	}
}

func TestLaunchAllocatesNothing(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{})
	s, fn := loaded(t, f.MustContext(t, 0), "k")
	l := &driver.Launch{Grid: driver.X(1), Block: driver.X(32)}
	if n := testing.AllocsPerRun(100, func() {
		params := addParams{N: 1}
		if err := driver.LaunchWith(s, fn, l, &params); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a launch", n)
	}
}

func BenchmarkLaunch(b *testing.B) {
	f := drivertest.New(b, drivertest.Options{ParamBytes: int(unsafe.Sizeof(addParams{}))})
	c := f.MustContext(b, 0)
	s, err := c.NewStream(0)
	if err != nil {
		b.Fatal(err)
	}
	m, err := c.LoadModule([]byte{1})
	if err != nil {
		b.Fatal(err)
	}
	fn, err := m.Function("k")
	if err != nil {
		b.Fatal(err)
	}
	l := &driver.Launch{Grid: driver.X(1), Block: driver.X(32)}
	params := addParams{N: 1}
	for b.Loop() {
		if err := driver.LaunchWith(s, fn, l, &params); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(m.Close(), s.Close()); err != nil {
		b.Error(err)
	}
}
