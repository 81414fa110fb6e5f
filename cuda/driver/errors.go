package driver

import (
	"errors"
	"fmt"
)

var (
	// ErrNoDriver means that libcuda is absent or unusable, or that the build has no cgo.
	ErrNoDriver = errors.New("no CUDA driver")
	// ErrOldDriver means that the driver is older than MinVersion; the error is an *OldDriverError.
	ErrOldDriver = errors.New("CUDA driver is too old")
	// ErrNoDevice means that the driver sees no GPU, or that an ordinal is out of range.
	ErrNoDevice = errors.New("no CUDA device")
	// ErrClosed means that an object was used after Close, or closed twice.
	ErrClosed = errors.New("closed")
	// ErrInUse means that a context was closed while objects made from it are still open.
	ErrInUse = errors.New("context still has open objects")
	// ErrBounds means that a size or offset does not fit the memory it names.
	ErrBounds = errors.New("out of bounds")
	// ErrParams means that a parameter block does not have the size that the kernel declares.
	ErrParams = errors.New("kernel parameters do not fit")
	// ErrGeometry means that a grid, block or cluster is empty or beyond CUDA's limits.
	ErrGeometry = errors.New("launch geometry is not valid")
)

// OldDriverError reports the CUDA version of the driver and the one needed, each as 1000·major + 10·minor.
type OldDriverError struct {
	Have, Need int
	// Symbol is a function that the driver should export and does not; empty when only the version is old.
	Symbol string
}

func (e *OldDriverError) Error() string {
	text := fmt.Sprintf("%v: it supports CUDA %s, need %s", ErrOldDriver, versionText(e.Have), versionText(e.Need))
	if e.Symbol != "" {
		text += " (no " + e.Symbol + ")"
	}
	return text
}

// Is makes errors.Is(err, ErrOldDriver) true.
func (e *OldDriverError) Is(target error) bool { return target == ErrOldDriver }

// Code is a CUresult.
type Code int32

// The codes that this package or its callers tell apart.
const (
	CodeInvalidValue       Code = 1
	CodeOutOfMemory        Code = 2
	CodeDeinitialized      Code = 4
	codeStubLibrary        Code = 34
	codeNoDevice           Code = 100
	CodeInvalidContext     Code = 201
	CodeECCUncorrectable   Code = 214
	CodeNVLinkFault        Code = 220
	CodeNotReady           Code = 600
	CodeIllegalAddress     Code = 700
	CodeLaunchResources    Code = 701
	CodeLaunchTimeout      Code = 702
	codePeerAlreadyEnabled Code = 704
	CodeContextDestroyed   Code = 709
	CodeAssert             Code = 710
	CodeHardwareStack      Code = 714
	CodeLaunchFailed       Code = 719
	CodeTensorMemoryLeak   Code = 721
	CodeUnknown            Code = 999
)

// Sticky reports whether the code means that the context is lost, so that every later call on it fails too.
func (c Code) Sticky() bool {
	switch c {
	case CodeDeinitialized, CodeECCUncorrectable, CodeNVLinkFault, CodeIllegalAddress, CodeLaunchTimeout,
		CodeContextDestroyed, CodeAssert, CodeUnknown:
		return true
	}
	// Faults of a running kernel: hardware stack, illegal instruction, misaligned address, address space, program
	// counter, launch failed; and a leak of tensor memory.
	return c >= CodeHardwareStack && c <= CodeLaunchFailed || c == CodeTensorMemoryLeak
}

// Error is a failed call of the driver.
type Error struct {
	// Op is what was tried, in lower case.
	Op string
	// Code is CUDA's result, Name its symbol such as CUDA_ERROR_OUT_OF_MEMORY, Text the driver's sentence.
	Code Code
	Name string
	Text string
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("cuda: %s: %s (%d)", e.Op, e.Name, e.Code)
	}
	return fmt.Sprintf("cuda: %s: %s (%d): %s", e.Op, e.Name, e.Code, e.Text)
}

// Sticky reports whether the context is lost.
func (e *Error) Sticky() bool { return e.Code.Sticky() }

// IsSticky reports whether the error's chain holds an *Error with a sticky code.
func IsSticky(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Sticky()
}

// IsOutOfMemory reports whether the error's chain holds CUDA's out-of-memory code.
func IsOutOfMemory(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == CodeOutOfMemory
}

// fail makes an *Error from a code that is not zero, and nil from zero.
func (d *Driver) fail(op string, code int32) error {
	if code == 0 {
		return nil
	}
	name, text := d.table.errorName(code), d.table.errorText(code)
	if name == "" {
		name = "CUDA_ERROR"
	}
	return &Error{Op: op, Code: Code(code), Name: name, Text: text}
}

func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
