//go:build linux && cgo

package driver

/*
#cgo noescape tr_resolve
#cgo nocallback tr_resolve
#cgo noescape tr_missing
#cgo nocallback tr_missing
#cgo noescape tr_init
#cgo nocallback tr_init
#cgo noescape tr_driver_version
#cgo nocallback tr_driver_version
#cgo noescape tr_error_name
#cgo nocallback tr_error_name
#cgo noescape tr_error_text
#cgo nocallback tr_error_text
#cgo noescape tr_device_count
#cgo nocallback tr_device_count
#cgo noescape tr_device_get
#cgo nocallback tr_device_get
#cgo noescape tr_device_name
#cgo nocallback tr_device_name
#cgo noescape tr_device_uuid
#cgo nocallback tr_device_uuid
#cgo noescape tr_device_pci
#cgo nocallback tr_device_pci
#cgo noescape tr_device_attribute
#cgo nocallback tr_device_attribute
#cgo noescape tr_device_memory
#cgo nocallback tr_device_memory
#cgo noescape tr_device_peer
#cgo nocallback tr_device_peer
#cgo noescape tr_ctx_retain
#cgo nocallback tr_ctx_retain
#cgo noescape tr_ctx_release
#cgo nocallback tr_ctx_release
#cgo noescape tr_ctx_reset
#cgo nocallback tr_ctx_reset
#cgo noescape tr_ctx_synchronize
#cgo nocallback tr_ctx_synchronize
#cgo noescape tr_ctx_enable_peer
#cgo nocallback tr_ctx_enable_peer
#cgo noescape tr_ctx_priorities
#cgo nocallback tr_ctx_priorities
#cgo noescape tr_mem_available
#cgo nocallback tr_mem_available
#cgo noescape tr_mem_alloc
#cgo nocallback tr_mem_alloc
#cgo noescape tr_mem_free
#cgo nocallback tr_mem_free
#cgo noescape tr_host_alloc
#cgo nocallback tr_host_alloc
#cgo noescape tr_host_free
#cgo nocallback tr_host_free
#cgo noescape tr_write
#cgo nocallback tr_write
#cgo noescape tr_read
#cgo nocallback tr_read
#cgo noescape tr_copy_htod
#cgo nocallback tr_copy_htod
#cgo noescape tr_copy_dtoh
#cgo nocallback tr_copy_dtoh
#cgo noescape tr_copy_dtod
#cgo nocallback tr_copy_dtod
#cgo noescape tr_copy_peer
#cgo nocallback tr_copy_peer
#cgo noescape tr_set8
#cgo nocallback tr_set8
#cgo noescape tr_set32
#cgo nocallback tr_set32
#cgo noescape tr_granularity
#cgo nocallback tr_granularity
#cgo noescape tr_reserve
#cgo nocallback tr_reserve
#cgo noescape tr_unreserve
#cgo nocallback tr_unreserve
#cgo noescape tr_map
#cgo nocallback tr_map
#cgo noescape tr_unmap
#cgo nocallback tr_unmap
#cgo noescape tr_stream_create
#cgo nocallback tr_stream_create
#cgo noescape tr_stream_destroy
#cgo nocallback tr_stream_destroy
#cgo noescape tr_stream_synchronize
#cgo nocallback tr_stream_synchronize
#cgo noescape tr_stream_query
#cgo nocallback tr_stream_query
#cgo noescape tr_stream_wait
#cgo nocallback tr_stream_wait
#cgo noescape tr_capture_begin
#cgo nocallback tr_capture_begin
#cgo noescape tr_capture_end
#cgo nocallback tr_capture_end
#cgo noescape tr_event_create
#cgo nocallback tr_event_create
#cgo noescape tr_event_destroy
#cgo nocallback tr_event_destroy
#cgo noescape tr_event_record
#cgo nocallback tr_event_record
#cgo noescape tr_event_synchronize
#cgo nocallback tr_event_synchronize
#cgo noescape tr_event_query
#cgo nocallback tr_event_query
#cgo noescape tr_event_elapsed
#cgo nocallback tr_event_elapsed
#cgo noescape tr_module_load
#cgo nocallback tr_module_load
#cgo noescape tr_module_unload
#cgo nocallback tr_module_unload
#cgo noescape tr_module_function
#cgo nocallback tr_module_function
#cgo noescape tr_module_global
#cgo nocallback tr_module_global
#cgo noescape tr_function_attribute
#cgo nocallback tr_function_attribute
#cgo noescape tr_function_set
#cgo nocallback tr_function_set
#cgo noescape tr_function_occupancy
#cgo nocallback tr_function_occupancy
#cgo noescape tr_function_params
#cgo nocallback tr_function_params
#cgo noescape tr_launch_kernel
#cgo nocallback tr_launch_kernel
#cgo noescape tr_graph_nodes
#cgo nocallback tr_graph_nodes
#cgo noescape tr_graph_destroy
#cgo nocallback tr_graph_destroy
#cgo noescape tr_graph_instantiate
#cgo nocallback tr_graph_instantiate
#cgo noescape tr_graph_upload
#cgo nocallback tr_graph_upload
#cgo noescape tr_graph_launch
#cgo nocallback tr_graph_launch
#cgo noescape tr_exec_destroy
#cgo nocallback tr_exec_destroy
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

// table wraps the C table of driver functions. Its methods are the raw calls: integers in, integers and a CUresult
// out. The file raw_stub.go has the same methods for builds without cgo. The table lies in C memory, so cgo has no
// pointers to check on each call, and stays for the life of the process, as the library does.
type table struct{ c *C.trctl_driver }

// openTable opens libcuda. missing names a required function that the library lacks.
func openTable(path string) (t *table, missing string, err error) {
	lib, err := dynlib.Open(dynlib.Candidates(path, "libcuda.so.1"))
	if err != nil {
		return nil, "", err
	}
	t = &table{c: (*C.trctl_driver)(C.calloc(1, C.sizeof_trctl_driver))}
	return t, C.GoString(C.tr_resolve(t.c, C.tr_h(lib.Handle))), nil
}

// useTable takes a ready struct trctl_driver in C memory.
func useTable(p unsafe.Pointer) (t *table, missing string, err error) {
	t = &table{c: (*C.trctl_driver)(p)}
	return t, C.GoString(C.tr_missing(t.c)), nil
}

// setCurrent is the address of cuCtxSetCurrent.
func (t *table) setCurrent() uintptr { return uintptr(unsafe.Pointer(t.c.cuCtxSetCurrent)) }

func (t *table) errorName(code int32) string { return C.GoString(C.tr_error_name(t.c, C.int(code))) }
func (t *table) errorText(code int32) string { return C.GoString(C.tr_error_text(t.c, C.int(code))) }

func (t *table) deviceName(device int32) (string, int32) {
	var name [256]C.char
	code := C.tr_device_name(t.c, C.int(device), &name[0], C.int(len(name)-1))
	return C.GoString(&name[0]), int32(code)
}

func (t *table) devicePCI(device int32) (string, int32) {
	var id [64]C.char
	code := C.tr_device_pci(t.c, C.int(device), &id[0], C.int(len(id)-1))
	return C.GoString(&id[0]), int32(code)
}

func (t *table) deviceUUID(device int32) ([16]byte, int32) {
	var uuid [16]byte
	code := C.tr_device_uuid(t.c, C.int(device), unsafe.Pointer(&uuid[0]))
	return uuid, int32(code)
}

func (t *table) hostAlloc(ctx uintptr, bytes uint64, flags uint32) (unsafe.Pointer, Ptr, int32) {
	var host unsafe.Pointer
	var device C.tr_ptr
	code := C.tr_host_alloc(t.c, C.tr_h(ctx), C.size_t(bytes), C.uint(flags), &host, &device)
	return host, Ptr(device), int32(code)
}

func (t *table) mapMemory(ctx uintptr, device int32, p Ptr, bytes uint64, peers []int32) (uint64, int32) {
	var memory C.ulonglong
	code := C.tr_map(t.c, C.tr_h(ctx), C.int(device), C.tr_ptr(p), C.size_t(bytes),
		(*C.int)(unsafe.Pointer(unsafe.SliceData(peers))), C.size_t(len(peers)), &memory)
	return uint64(memory), int32(code)
}

func (t *table) moduleFunction(ctx, module uintptr, name string) (uintptr, int32) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var function C.tr_h
	code := C.tr_module_function(t.c, C.tr_h(ctx), C.tr_h(module), cname, &function)
	return uintptr(function), int32(code)
}

func (t *table) moduleGlobal(ctx, module uintptr, name string) (Ptr, uint64, int32) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var p C.tr_ptr
	var bytes C.size_t
	code := C.tr_module_global(t.c, C.tr_h(ctx), C.tr_h(module), cname, &p, &bytes)
	return Ptr(p), uint64(bytes), int32(code)
}

func (t *table) launch(ctx, stream, function uintptr, l *Launch, params unsafe.Pointer, paramBytes uint32) int32 {
	var c C.tr_launch
	for i := range 3 {
		c.grid[i], c.block[i], c.cluster[i] = C.uint(l.Grid[i]), C.uint(l.Block[i]), C.uint(l.Cluster[i])
	}
	c.shared_bytes, c.flags, c.param_bytes = C.uint(l.SharedBytes), C.uint(l.flags()), C.uint(paramBytes)
	return int32(C.tr_launch_kernel(t.c, C.tr_h(ctx), C.tr_h(stream), C.tr_h(function), &c, params))
}

func (t *table) init() int32 {
	return int32(C.tr_init(t.c))
}

func (t *table) driverVersion() (int32, int32) {
	var o0 C.int
	code := C.tr_driver_version(t.c, &o0)
	return int32(o0), int32(code)
}

func (t *table) deviceCount() (int32, int32) {
	var o0 C.int
	code := C.tr_device_count(t.c, &o0)
	return int32(o0), int32(code)
}

func (t *table) deviceGet(ordinal int32) (int32, int32) {
	var o0 C.int
	code := C.tr_device_get(t.c, C.int(ordinal), &o0)
	return int32(o0), int32(code)
}

func (t *table) deviceAttribute(device, attribute int32) (int32, int32) {
	var o0 C.int
	code := C.tr_device_attribute(t.c, C.int(device), C.int(attribute), &o0)
	return int32(o0), int32(code)
}

func (t *table) deviceMemory(device int32) (uint64, int32) {
	var o0 C.size_t
	code := C.tr_device_memory(t.c, C.int(device), &o0)
	return uint64(o0), int32(code)
}

func (t *table) devicePeer(device, peer int32) (int32, int32) {
	var o0 C.int
	code := C.tr_device_peer(t.c, C.int(device), C.int(peer), &o0)
	return int32(o0), int32(code)
}

func (t *table) ctxRetain(device int32) (uintptr, int32) {
	var o0 C.tr_h
	code := C.tr_ctx_retain(t.c, C.int(device), &o0)
	return uintptr(o0), int32(code)
}

func (t *table) ctxRelease(device int32) int32 {
	return int32(C.tr_ctx_release(t.c, C.int(device)))
}

func (t *table) ctxReset(device int32) int32 {
	return int32(C.tr_ctx_reset(t.c, C.int(device)))
}

func (t *table) ctxSynchronize(ctx uintptr) int32 {
	return int32(C.tr_ctx_synchronize(t.c, C.tr_h(ctx)))
}

func (t *table) ctxEnablePeer(ctx, peer uintptr) int32 {
	return int32(C.tr_ctx_enable_peer(t.c, C.tr_h(ctx), C.tr_h(peer)))
}

func (t *table) ctxPriorities(ctx uintptr) (int32, int32, int32) {
	var o0 C.int
	var o1 C.int
	code := C.tr_ctx_priorities(t.c, C.tr_h(ctx), &o0, &o1)
	return int32(o0), int32(o1), int32(code)
}

func (t *table) memAvailable(ctx uintptr) (uint64, uint64, int32) {
	var o0 C.size_t
	var o1 C.size_t
	code := C.tr_mem_available(t.c, C.tr_h(ctx), &o0, &o1)
	return uint64(o0), uint64(o1), int32(code)
}

func (t *table) memAlloc(ctx uintptr, bytes uint64) (Ptr, int32) {
	var o0 C.tr_ptr
	code := C.tr_mem_alloc(t.c, C.tr_h(ctx), C.size_t(bytes), &o0)
	return Ptr(o0), int32(code)
}

func (t *table) memFree(ctx uintptr, p Ptr) int32 {
	return int32(C.tr_mem_free(t.c, C.tr_h(ctx), C.tr_ptr(p)))
}

func (t *table) hostFree(ctx uintptr, host unsafe.Pointer) int32 {
	return int32(C.tr_host_free(t.c, C.tr_h(ctx), host))
}

func (t *table) write(ctx uintptr, dst Ptr, src unsafe.Pointer, bytes uint64) int32 {
	return int32(C.tr_write(t.c, C.tr_h(ctx), C.tr_ptr(dst), src, C.size_t(bytes)))
}

func (t *table) read(ctx uintptr, dst unsafe.Pointer, src Ptr, bytes uint64) int32 {
	return int32(C.tr_read(t.c, C.tr_h(ctx), dst, C.tr_ptr(src), C.size_t(bytes)))
}

func (t *table) copyHtoD(ctx, stream uintptr, dst Ptr, src unsafe.Pointer, bytes uint64) int32 {
	return int32(C.tr_copy_htod(t.c, C.tr_h(ctx), C.tr_h(stream), C.tr_ptr(dst), src, C.size_t(bytes)))
}

func (t *table) copyDtoH(ctx, stream uintptr, dst unsafe.Pointer, src Ptr, bytes uint64) int32 {
	return int32(C.tr_copy_dtoh(t.c, C.tr_h(ctx), C.tr_h(stream), dst, C.tr_ptr(src), C.size_t(bytes)))
}

func (t *table) copyDtoD(ctx, stream uintptr, dst, src Ptr, bytes uint64) int32 {
	return int32(C.tr_copy_dtod(t.c, C.tr_h(ctx), C.tr_h(stream), C.tr_ptr(dst), C.tr_ptr(src), C.size_t(bytes)))
}

func (t *table) copyPeer(ctx, stream uintptr, dst Ptr, dstCtx uintptr, src Ptr, srcCtx uintptr, bytes uint64) int32 {
	return int32(C.tr_copy_peer(t.c, C.tr_h(ctx), C.tr_h(stream), C.tr_ptr(dst), C.tr_h(dstCtx), C.tr_ptr(src), C.tr_h(srcCtx), C.size_t(bytes)))
}

func (t *table) set8(ctx, stream uintptr, dst Ptr, value uint32, count uint64) int32 {
	return int32(C.tr_set8(t.c, C.tr_h(ctx), C.tr_h(stream), C.tr_ptr(dst), C.uint(value), C.size_t(count)))
}

func (t *table) set32(ctx, stream uintptr, dst Ptr, value uint32, count uint64) int32 {
	return int32(C.tr_set32(t.c, C.tr_h(ctx), C.tr_h(stream), C.tr_ptr(dst), C.uint(value), C.size_t(count)))
}

func (t *table) granularity(device int32) (uint64, int32) {
	var o0 C.size_t
	code := C.tr_granularity(t.c, C.int(device), &o0)
	return uint64(o0), int32(code)
}

func (t *table) reserve(ctx uintptr, bytes uint64) (Ptr, int32) {
	var o0 C.tr_ptr
	code := C.tr_reserve(t.c, C.tr_h(ctx), C.size_t(bytes), &o0)
	return Ptr(o0), int32(code)
}

func (t *table) unreserve(ctx uintptr, p Ptr, bytes uint64) int32 {
	return int32(C.tr_unreserve(t.c, C.tr_h(ctx), C.tr_ptr(p), C.size_t(bytes)))
}

func (t *table) unmap(ctx uintptr, p Ptr, bytes, memory uint64) int32 {
	return int32(C.tr_unmap(t.c, C.tr_h(ctx), C.tr_ptr(p), C.size_t(bytes), C.ulonglong(memory)))
}

func (t *table) streamCreate(ctx uintptr, priority int32) (uintptr, int32) {
	var o0 C.tr_h
	code := C.tr_stream_create(t.c, C.tr_h(ctx), C.int(priority), &o0)
	return uintptr(o0), int32(code)
}

func (t *table) streamDestroy(ctx, stream uintptr) int32 {
	return int32(C.tr_stream_destroy(t.c, C.tr_h(ctx), C.tr_h(stream)))
}

func (t *table) streamSynchronize(ctx, stream uintptr) int32 {
	return int32(C.tr_stream_synchronize(t.c, C.tr_h(ctx), C.tr_h(stream)))
}

func (t *table) streamQuery(ctx, stream uintptr) int32 {
	return int32(C.tr_stream_query(t.c, C.tr_h(ctx), C.tr_h(stream)))
}

func (t *table) streamWait(ctx, stream, event uintptr) int32 {
	return int32(C.tr_stream_wait(t.c, C.tr_h(ctx), C.tr_h(stream), C.tr_h(event)))
}

func (t *table) captureBegin(ctx, stream uintptr, mode int32) int32 {
	return int32(C.tr_capture_begin(t.c, C.tr_h(ctx), C.tr_h(stream), C.int(mode)))
}

func (t *table) captureEnd(ctx, stream uintptr) (uintptr, int32) {
	var o0 C.tr_h
	code := C.tr_capture_end(t.c, C.tr_h(ctx), C.tr_h(stream), &o0)
	return uintptr(o0), int32(code)
}

func (t *table) eventCreate(ctx uintptr, flags uint32) (uintptr, int32) {
	var o0 C.tr_h
	code := C.tr_event_create(t.c, C.tr_h(ctx), C.uint(flags), &o0)
	return uintptr(o0), int32(code)
}

func (t *table) eventDestroy(ctx, event uintptr) int32 {
	return int32(C.tr_event_destroy(t.c, C.tr_h(ctx), C.tr_h(event)))
}

func (t *table) eventRecord(ctx, event, stream uintptr) int32 {
	return int32(C.tr_event_record(t.c, C.tr_h(ctx), C.tr_h(event), C.tr_h(stream)))
}

func (t *table) eventSynchronize(ctx, event uintptr) int32 {
	return int32(C.tr_event_synchronize(t.c, C.tr_h(ctx), C.tr_h(event)))
}

func (t *table) eventQuery(ctx, event uintptr) int32 {
	return int32(C.tr_event_query(t.c, C.tr_h(ctx), C.tr_h(event)))
}

func (t *table) eventElapsed(ctx, start, end uintptr) (float32, int32) {
	var o0 C.float
	code := C.tr_event_elapsed(t.c, C.tr_h(ctx), C.tr_h(start), C.tr_h(end), &o0)
	return float32(o0), int32(code)
}

func (t *table) moduleLoad(ctx uintptr, image unsafe.Pointer) (uintptr, int32) {
	var o0 C.tr_h
	code := C.tr_module_load(t.c, C.tr_h(ctx), image, &o0)
	return uintptr(o0), int32(code)
}

func (t *table) moduleUnload(ctx, module uintptr) int32 {
	return int32(C.tr_module_unload(t.c, C.tr_h(ctx), C.tr_h(module)))
}

func (t *table) functionAttribute(ctx, function uintptr, attribute int32) (int32, int32) {
	var o0 C.int
	code := C.tr_function_attribute(t.c, C.tr_h(ctx), C.tr_h(function), C.int(attribute), &o0)
	return int32(o0), int32(code)
}

func (t *table) functionSet(ctx, function uintptr, attribute, value int32) int32 {
	return int32(C.tr_function_set(t.c, C.tr_h(ctx), C.tr_h(function), C.int(attribute), C.int(value)))
}

func (t *table) functionOccupancy(ctx, function uintptr, block int32, sharedBytes uint64) (int32, int32) {
	var o0 C.int
	code := C.tr_function_occupancy(t.c, C.tr_h(ctx), C.tr_h(function), C.int(block), C.size_t(sharedBytes), &o0)
	return int32(o0), int32(code)
}

func (t *table) functionParams(ctx, function uintptr) (int32, int32) {
	var o0 C.int
	code := C.tr_function_params(t.c, C.tr_h(ctx), C.tr_h(function), &o0)
	return int32(o0), int32(code)
}

func (t *table) graphNodes(ctx, graph uintptr) (uint64, int32) {
	var o0 C.size_t
	code := C.tr_graph_nodes(t.c, C.tr_h(ctx), C.tr_h(graph), &o0)
	return uint64(o0), int32(code)
}

func (t *table) graphDestroy(ctx, graph uintptr) int32 {
	return int32(C.tr_graph_destroy(t.c, C.tr_h(ctx), C.tr_h(graph)))
}

func (t *table) graphInstantiate(ctx, graph uintptr) (uintptr, int32) {
	var o0 C.tr_h
	code := C.tr_graph_instantiate(t.c, C.tr_h(ctx), C.tr_h(graph), &o0)
	return uintptr(o0), int32(code)
}

func (t *table) graphUpload(ctx, exec, stream uintptr) int32 {
	return int32(C.tr_graph_upload(t.c, C.tr_h(ctx), C.tr_h(exec), C.tr_h(stream)))
}

func (t *table) graphLaunch(ctx, exec, stream uintptr) int32 {
	return int32(C.tr_graph_launch(t.c, C.tr_h(ctx), C.tr_h(exec), C.tr_h(stream)))
}

func (t *table) execDestroy(ctx, exec uintptr) int32 {
	return int32(C.tr_exec_destroy(t.c, C.tr_h(ctx), C.tr_h(exec)))
}
