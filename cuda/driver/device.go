package driver

import "fmt"

// Device is one GPU. It is a value; it holds no resource.
type Device struct {
	driver  *Driver
	ordinal int
	handle  int32
}

// Attribute is a CUdevice_attribute.
type Attribute int32

// The attributes that the engine plans with.
const (
	MaxThreadsPerBlock       Attribute = 1
	SharedBytesPerBlock      Attribute = 8
	ClockKHz                 Attribute = 13
	MultiprocessorCount      Attribute = 16
	CanMapHostMemory         Attribute = 19
	L2Bytes                  Attribute = 38
	MaxThreadsPerSM          Attribute = 39
	UnifiedAddressing        Attribute = 41
	ComputeMajor             Attribute = 75
	ComputeMinor             Attribute = 76
	SharedBytesPerSM         Attribute = 81
	RegistersPerSM           Attribute = 82
	CooperativeLaunch        Attribute = 95
	SharedBytesPerBlockOptin Attribute = 97
	VirtualMemory            Attribute = 102
	ClusterLaunch            Attribute = 120
	memoryClockKHz           Attribute = 36
	memoryBusBits            Attribute = 37
)

// Device returns the GPU with the ordinal, in the driver's order. An ordinal that does not exist is ErrNoDevice.
func (d *Driver) Device(ordinal int) (Device, error) {
	if ordinal < 0 || ordinal >= d.count {
		return Device{}, fmt.Errorf("%w: ordinal %d of %d", ErrNoDevice, ordinal, d.count)
	}
	handle, code := d.table.deviceGet(int32(ordinal))
	if err := d.fail("get device", code); err != nil {
		return Device{}, noDriver(err)
	}
	return Device{driver: d, ordinal: ordinal, handle: handle}, nil
}

// Ordinal is the device's number in the driver's order.
func (v Device) Ordinal() int { return v.ordinal }

// Name is the product's name, such as "NVIDIA H200".
func (v Device) Name() (string, error) {
	name, code := v.driver.table.deviceName(v.handle)
	return name, v.driver.fail("read device name", code)
}

// UUID is the device's identity as NVML prints it, "GPU-8-4-4-4-12".
func (v Device) UUID() (string, error) {
	u, code := v.driver.table.deviceUUID(v.handle)
	if err := v.driver.fail("read device uuid", code); err != nil {
		return "", err
	}
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]), nil
}

// PCIBusID is the bus address, such as "0000:1b:00.0".
func (v Device) PCIBusID() (string, error) {
	id, code := v.driver.table.devicePCI(v.handle)
	return id, v.driver.fail("read pci bus id", code)
}

// Attribute reads one attribute.
func (v Device) Attribute(a Attribute) (int, error) {
	value, code := v.driver.table.deviceAttribute(v.handle, int32(a))
	return int(value), v.driver.fail(fmt.Sprintf("read device attribute %d", a), code)
}

// ComputeCapability returns 9 and 0 for an H200.
func (v Device) ComputeCapability() (major, minor int, err error) {
	if major, err = v.Attribute(ComputeMajor); err != nil {
		return 0, 0, err
	}
	minor, err = v.Attribute(ComputeMinor)
	return major, minor, err
}

// Arch is the device's compile target with its own features where it has some: "sm_80", "sm_90a".
func (v Device) Arch() (string, error) {
	major, minor, err := v.ComputeCapability()
	if err != nil {
		return "", err
	}
	suffix := ""
	if major >= 9 {
		suffix = "a"
	}
	return fmt.Sprintf("sm_%d%d%s", major, minor, suffix), nil
}

// TotalMemory is the device's memory in bytes.
func (v Device) TotalMemory() (uint64, error) {
	bytes, code := v.driver.table.deviceMemory(v.handle)
	return bytes, v.driver.fail("read device memory", code)
}

// PeakBandwidth is the memory's nominal rate in bytes a second, from clock and bus width; 0 when the driver does not
// say.
func (v Device) PeakBandwidth() float64 {
	clock, err := v.Attribute(memoryClockKHz)
	if err != nil {
		return 0
	}
	bits, err := v.Attribute(memoryBusBits)
	if err != nil {
		return 0
	}
	return 2 * float64(clock) * 1e3 * float64(bits) / 8
}

// CanAccessPeer reports whether this device can read and write the peer's memory.
func (v Device) CanAccessPeer(peer Device) (bool, error) {
	can, code := v.driver.table.devicePeer(v.handle, peer.handle)
	return can != 0, v.driver.fail("query peer access", code)
}
