package driver

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

// MinVersion is the oldest CUDA version that the driver must support, as 1000·major + 10·minor. 12.0 is the first
// with every function used here for sm_90.
const MinVersion = 12000

// Driver is the loaded CUDA driver. It is safe for concurrent use and lives until the process ends.
type Driver struct {
	table   *table
	version int
	count   int
	live    counters

	mu sync.Mutex
	// contexts counts the open contexts of each ordinal. Guarded by mu.
	contexts map[int]int
}

// Load opens libcuda.so.1 and initialises it. The error is ErrNoDriver, ErrOldDriver, ErrNoDevice or an *Error.
// Loading twice gives two values over one library; they count their objects apart.
func Load() (*Driver, error) { return LoadFile("") }

// LoadFile is Load with an explicit path of the library; the empty path means the system's libcuda.so.1.
func LoadFile(path string) (*Driver, error) {
	t, missing, err := openTable(path)
	if err != nil {
		if errors.Is(err, dynlib.ErrNotFound) || t == nil {
			return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
		}
		return nil, err
	}
	return start(t, missing)
}

// NewFromTable makes a Driver from a struct trctl_driver of symbols.h, filled by the caller and in C memory for as
// long as the Driver is used. It exists for package drivertest.
func NewFromTable(functions unsafe.Pointer) (*Driver, error) {
	if functions == nil {
		return nil, ErrNoDriver
	}
	t, missing, err := useTable(functions)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	return start(t, missing)
}

// start checks the version, initialises the driver and counts the devices.
func start(t *table, missing string) (*Driver, error) {
	d := &Driver{table: t, contexts: make(map[int]int)}
	if missing != "" {
		// Without cuDriverGetVersion even the version cannot be asked for; 0 then says "unknown".
		return nil, &OldDriverError{Have: 0, Need: MinVersion, Symbol: missing}
	}
	version, code := t.driverVersion()
	if err := d.fail("read driver version", code); err != nil {
		return nil, noDriver(err)
	}
	if version < MinVersion {
		return nil, &OldDriverError{Have: int(version), Need: MinVersion}
	}
	d.version = int(version)
	if err := d.fail("initialise driver", t.init()); err != nil {
		return nil, noDriver(err)
	}
	count, code := t.deviceCount()
	if err := d.fail("count devices", code); err != nil {
		return nil, noDriver(err)
	}
	if count <= 0 {
		return nil, ErrNoDevice
	}
	d.count = int(count)
	return d, nil
}

// noDriver maps the codes that mean "nothing to run on" to their sentinels.
func noDriver(err error) error {
	var e *Error
	if errors.As(err, &e) {
		switch e.Code {
		case codeNoDevice:
			return fmt.Errorf("%w: %w", ErrNoDevice, err)
		case codeStubLibrary:
			return fmt.Errorf("%w: libcuda is the toolkit's stub: %w", ErrNoDriver, err)
		}
	}
	return err
}

// Version is the newest CUDA version that the driver supports, as 1000·major + 10·minor (13000 is CUDA 13.0).
func (d *Driver) Version() int { return d.version }

// VersionText is Version as "13.0".
func (d *Driver) VersionText() string { return versionText(d.version) }

// DeviceCount is the number of GPUs, at least 1.
func (d *Driver) DeviceCount() int { return d.count }

// retained counts n more open contexts of a device.
func (d *Driver) retained(ordinal, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts[ordinal] += n
}

// Live counts what is open now.
func (d *Driver) Live() Live { return d.live.load() }
