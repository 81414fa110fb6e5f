//go:build !linux || !cgo

package driver

import (
	"fmt"
	"unsafe"
)

// table has the methods of raw_cgo.go and none of its functions. No value of it is ever made, since openTable fails,
// so the methods only satisfy the compiler; each returns CUDA's code of the stub library.
type table struct{}

const codeStubLibrary32 = int32(codeStubLibrary)

func openTable(string) (*table, string, error) {
	return nil, "", fmt.Errorf("built without cgo")
}

func useTable(unsafe.Pointer) (*table, string, error) {
	return nil, "", fmt.Errorf("built without cgo")
}

func (t *table) setCurrent() uintptr    { return 0 }
func (t *table) errorName(int32) string { return "" }
func (t *table) errorText(int32) string { return "" }

func (t *table) deviceName(int32) (string, int32)   { return "", codeStubLibrary32 }
func (t *table) devicePCI(int32) (string, int32)    { return "", codeStubLibrary32 }
func (t *table) deviceUUID(int32) ([16]byte, int32) { return [16]byte{}, codeStubLibrary32 }

func (t *table) hostAlloc(uintptr, uint64, uint32) (unsafe.Pointer, Ptr, int32) {
	return nil, 0, codeStubLibrary32
}

func (t *table) mapMemory(uintptr, int32, Ptr, uint64, []int32) (uint64, int32) {
	return 0, codeStubLibrary32
}
func (t *table) moduleFunction(uintptr, uintptr, string) (uintptr, int32) {
	return 0, codeStubLibrary32
}
func (t *table) moduleGlobal(uintptr, uintptr, string) (Ptr, uint64, int32) {
	return 0, 0, codeStubLibrary32
}

func (t *table) launch(uintptr, uintptr, uintptr, *Launch, unsafe.Pointer, uint32) int32 {
	return codeStubLibrary32
}

func (t *table) init() int32                                      { return codeStubLibrary32 }
func (t *table) driverVersion() (int32, int32)                    { return 0, codeStubLibrary32 }
func (t *table) deviceCount() (int32, int32)                      { return 0, codeStubLibrary32 }
func (t *table) deviceGet(int32) (int32, int32)                   { return 0, codeStubLibrary32 }
func (t *table) deviceAttribute(int32, int32) (int32, int32)      { return 0, codeStubLibrary32 }
func (t *table) deviceMemory(int32) (uint64, int32)               { return 0, codeStubLibrary32 }
func (t *table) devicePeer(int32, int32) (int32, int32)           { return 0, codeStubLibrary32 }
func (t *table) ctxRetain(int32) (uintptr, int32)                 { return 0, codeStubLibrary32 }
func (t *table) ctxRelease(int32) int32                           { return codeStubLibrary32 }
func (t *table) ctxReset(int32) int32                             { return codeStubLibrary32 }
func (t *table) ctxSynchronize(uintptr) int32                     { return codeStubLibrary32 }
func (t *table) ctxEnablePeer(uintptr, uintptr) int32             { return codeStubLibrary32 }
func (t *table) ctxPriorities(uintptr) (int32, int32, int32)      { return 0, 0, codeStubLibrary32 }
func (t *table) memAvailable(uintptr) (uint64, uint64, int32)     { return 0, 0, codeStubLibrary32 }
func (t *table) memAlloc(uintptr, uint64) (Ptr, int32)            { return 0, codeStubLibrary32 }
func (t *table) memFree(uintptr, Ptr) int32                       { return codeStubLibrary32 }
func (t *table) hostFree(uintptr, unsafe.Pointer) int32           { return codeStubLibrary32 }
func (t *table) write(uintptr, Ptr, unsafe.Pointer, uint64) int32 { return codeStubLibrary32 }
func (t *table) read(uintptr, unsafe.Pointer, Ptr, uint64) int32  { return codeStubLibrary32 }
func (t *table) copyHtoD(uintptr, uintptr, Ptr, unsafe.Pointer, uint64) int32 {
	return codeStubLibrary32
}
func (t *table) copyDtoH(uintptr, uintptr, unsafe.Pointer, Ptr, uint64) int32 {
	return codeStubLibrary32
}
func (t *table) copyDtoD(uintptr, uintptr, Ptr, Ptr, uint64) int32 { return codeStubLibrary32 }
func (t *table) copyPeer(uintptr, uintptr, Ptr, uintptr, Ptr, uintptr, uint64) int32 {
	return codeStubLibrary32
}
func (t *table) set8(uintptr, uintptr, Ptr, uint32, uint64) int32        { return codeStubLibrary32 }
func (t *table) set32(uintptr, uintptr, Ptr, uint32, uint64) int32       { return codeStubLibrary32 }
func (t *table) granularity(int32) (uint64, int32)                       { return 0, codeStubLibrary32 }
func (t *table) reserve(uintptr, uint64) (Ptr, int32)                    { return 0, codeStubLibrary32 }
func (t *table) unreserve(uintptr, Ptr, uint64) int32                    { return codeStubLibrary32 }
func (t *table) unmap(uintptr, Ptr, uint64, uint64) int32                { return codeStubLibrary32 }
func (t *table) streamCreate(uintptr, int32) (uintptr, int32)            { return 0, codeStubLibrary32 }
func (t *table) streamDestroy(uintptr, uintptr) int32                    { return codeStubLibrary32 }
func (t *table) streamSynchronize(uintptr, uintptr) int32                { return codeStubLibrary32 }
func (t *table) streamQuery(uintptr, uintptr) int32                      { return codeStubLibrary32 }
func (t *table) streamWait(uintptr, uintptr, uintptr) int32              { return codeStubLibrary32 }
func (t *table) captureBegin(uintptr, uintptr, int32) int32              { return codeStubLibrary32 }
func (t *table) captureEnd(uintptr, uintptr) (uintptr, int32)            { return 0, codeStubLibrary32 }
func (t *table) eventCreate(uintptr, uint32) (uintptr, int32)            { return 0, codeStubLibrary32 }
func (t *table) eventDestroy(uintptr, uintptr) int32                     { return codeStubLibrary32 }
func (t *table) eventRecord(uintptr, uintptr, uintptr) int32             { return codeStubLibrary32 }
func (t *table) eventSynchronize(uintptr, uintptr) int32                 { return codeStubLibrary32 }
func (t *table) eventQuery(uintptr, uintptr) int32                       { return codeStubLibrary32 }
func (t *table) eventElapsed(uintptr, uintptr, uintptr) (float32, int32) { return 0, codeStubLibrary32 }
func (t *table) moduleLoad(uintptr, unsafe.Pointer) (uintptr, int32)     { return 0, codeStubLibrary32 }
func (t *table) moduleUnload(uintptr, uintptr) int32                     { return codeStubLibrary32 }
func (t *table) functionAttribute(uintptr, uintptr, int32) (int32, int32) {
	return 0, codeStubLibrary32
}
func (t *table) functionSet(uintptr, uintptr, int32, int32) int32 { return codeStubLibrary32 }
func (t *table) functionOccupancy(uintptr, uintptr, int32, uint64) (int32, int32) {
	return 0, codeStubLibrary32
}
func (t *table) functionParams(uintptr, uintptr) (int32, int32)     { return 0, codeStubLibrary32 }
func (t *table) graphNodes(uintptr, uintptr) (uint64, int32)        { return 0, codeStubLibrary32 }
func (t *table) graphDestroy(uintptr, uintptr) int32                { return codeStubLibrary32 }
func (t *table) graphInstantiate(uintptr, uintptr) (uintptr, int32) { return 0, codeStubLibrary32 }
func (t *table) graphUpload(uintptr, uintptr, uintptr) int32        { return codeStubLibrary32 }
func (t *table) graphLaunch(uintptr, uintptr, uintptr) int32        { return codeStubLibrary32 }
func (t *table) execDestroy(uintptr, uintptr) int32                 { return codeStubLibrary32 }
