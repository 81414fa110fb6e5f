//go:build linux && cgo

#include "shim.h"

#include <dlfcn.h>
#include <string.h>

// CUDA constants, by the names of the driver API.
enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_INVALID_VALUE = 1,
};

// Makes the context current on the calling thread, or returns the error from the enclosing shim.
#define ENTER \
	do { \
		int entered = t->cuCtxSetCurrent((void *)ctx); \
		if (entered != 0) return entered; \
	} while (0)

const char *tr_resolve(trctl_driver *t, tr_h library) {
#define RESOLVE(name, parameters) *(void **)&t->name = dlsym((void *)library, #name);
	TRCTL_REQUIRED(RESOLVE)
	TRCTL_OPTIONAL(RESOLVE)
#undef RESOLVE
	return tr_missing(t);
}

const char *tr_missing(const trctl_driver *t) {
#define CHECK(name, parameters) if (t->name == NULL) return #name;
	TRCTL_REQUIRED(CHECK)
#undef CHECK
	return NULL;
}

int tr_init(const trctl_driver *t) { return t->cuInit(0); }
int tr_driver_version(const trctl_driver *t, int *version) { return t->cuDriverGetVersion(version); }

const char *tr_error_name(const trctl_driver *t, int code) {
	const char *name = NULL;
	return t->cuGetErrorName(code, &name) == 0 ? name : NULL;
}

const char *tr_error_text(const trctl_driver *t, int code) {
	const char *text = NULL;
	return t->cuGetErrorString(code, &text) == 0 ? text : NULL;
}

int tr_device_count(const trctl_driver *t, int *count) { return t->cuDeviceGetCount(count); }
int tr_device_get(const trctl_driver *t, int ordinal, int *device) { return t->cuDeviceGet(device, ordinal); }
int tr_device_name(const trctl_driver *t, int device, char *name, int size) { return t->cuDeviceGetName(name, size, device); }
int tr_device_uuid(const trctl_driver *t, int device, void *uuid) { return t->cuDeviceGetUuid_v2(uuid, device); }
int tr_device_pci(const trctl_driver *t, int device, char *id, int size) { return t->cuDeviceGetPCIBusId(id, size, device); }
int tr_device_attribute(const trctl_driver *t, int device, int attribute, int *value) { return t->cuDeviceGetAttribute(value, attribute, device); }
int tr_device_memory(const trctl_driver *t, int device, size_t *bytes) { return t->cuDeviceTotalMem_v2(bytes, device); }
int tr_device_peer(const trctl_driver *t, int device, int peer, int *can) { return t->cuDeviceCanAccessPeer(can, device, peer); }

int tr_ctx_retain(const trctl_driver *t, int device, tr_h *ctx) { return t->cuDevicePrimaryCtxRetain((void **)ctx, device); }
int tr_ctx_release(const trctl_driver *t, int device) { return t->cuDevicePrimaryCtxRelease_v2(device); }
int tr_ctx_reset(const trctl_driver *t, int device) { return t->cuDevicePrimaryCtxReset_v2(device); }
int tr_ctx_synchronize(const trctl_driver *t, tr_h ctx) { ENTER; return t->cuCtxSynchronize(); }
int tr_ctx_enable_peer(const trctl_driver *t, tr_h ctx, tr_h peer) { ENTER; return t->cuCtxEnablePeerAccess((void *)peer, 0); }
int tr_ctx_priorities(const trctl_driver *t, tr_h ctx, int *least, int *greatest) { ENTER; return t->cuCtxGetStreamPriorityRange(least, greatest); }

int tr_mem_available(const trctl_driver *t, tr_h ctx, size_t *free, size_t *total) { ENTER; return t->cuMemGetInfo_v2(free, total); }
int tr_mem_alloc(const trctl_driver *t, tr_h ctx, size_t bytes, tr_ptr *ptr) { ENTER; return t->cuMemAlloc_v2(ptr, bytes); }
int tr_mem_free(const trctl_driver *t, tr_h ctx, tr_ptr ptr) { ENTER; return t->cuMemFree_v2(ptr); }

int tr_host_alloc(const trctl_driver *t, tr_h ctx, size_t bytes, unsigned flags, void **host, tr_ptr *device) {
	ENTER;
	int code = t->cuMemHostAlloc(host, bytes, flags);
	if (code != 0) return code;
	code = t->cuMemHostGetDevicePointer_v2(device, *host, 0);
	if (code != 0) {
		t->cuMemFreeHost(*host);
		*host = NULL;
	}
	return code;
}

int tr_host_free(const trctl_driver *t, tr_h ctx, void *host) { ENTER; return t->cuMemFreeHost(host); }
// From pageable memory the driver's copy returns when the bytes are in a buffer of its own: other streams must not begin before they arrive.
int tr_write(const trctl_driver *t, tr_h ctx, tr_ptr dst, const void *src, size_t bytes) {
	ENTER;
	int rc = t->cuMemcpyHtoD_v2(dst, src, bytes);
	return rc ? rc : t->cuStreamSynchronize(0);
}
int tr_read(const trctl_driver *t, tr_h ctx, void *dst, tr_ptr src, size_t bytes) { ENTER; return t->cuMemcpyDtoH_v2(dst, src, bytes); }
int tr_copy_htod(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, const void *src, size_t bytes) { ENTER; return t->cuMemcpyHtoDAsync_v2(dst, src, bytes, (void *)stream); }
int tr_copy_dtoh(const trctl_driver *t, tr_h ctx, tr_h stream, void *dst, tr_ptr src, size_t bytes) { ENTER; return t->cuMemcpyDtoHAsync_v2(dst, src, bytes, (void *)stream); }
int tr_copy_dtod(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, tr_ptr src, size_t bytes) { ENTER; return t->cuMemcpyDtoDAsync_v2(dst, src, bytes, (void *)stream); }

int tr_copy_peer(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, tr_h dst_ctx, tr_ptr src, tr_h src_ctx, size_t bytes) {
	ENTER;
	return t->cuMemcpyPeerAsync(dst, (void *)dst_ctx, src, (void *)src_ctx, bytes, (void *)stream);
}

int tr_set8(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, unsigned value, size_t count) { ENTER; return t->cuMemsetD8Async(dst, (unsigned char)value, count, (void *)stream); }
int tr_set32(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, unsigned value, size_t count) { ENTER; return t->cuMemsetD32Async(dst, value, count, (void *)stream); }

static tr_alloc_prop device_memory(int device) {
	tr_alloc_prop prop;
	memset(&prop, 0, sizeof prop);
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = device;
	return prop;
}

int tr_granularity(const trctl_driver *t, int device, size_t *bytes) {
	tr_alloc_prop prop = device_memory(device);
	return t->cuMemGetAllocationGranularity(bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

int tr_reserve(const trctl_driver *t, tr_h ctx, size_t bytes, tr_ptr *ptr) { ENTER; return t->cuMemAddressReserve(ptr, bytes, 0, 0, 0); }
int tr_unreserve(const trctl_driver *t, tr_h ctx, tr_ptr ptr, size_t bytes) { ENTER; return t->cuMemAddressFree(ptr, bytes); }

// Creates memory on the device, maps it, and grants read and write to the device and to the peers. On an error
// nothing stays behind.
int tr_map(const trctl_driver *t, tr_h ctx, int device, tr_ptr ptr, size_t bytes, const int *peers, size_t peer_count, unsigned long long *handle) {
	enum { MAX_PEERS = 16 };
	tr_access access[MAX_PEERS + 1];
	if (peer_count > MAX_PEERS) return CU_INVALID_VALUE;
	ENTER;
	tr_alloc_prop prop = device_memory(device);
	int code = t->cuMemCreate(handle, bytes, &prop, 0);
	if (code != 0) return code;
	code = t->cuMemMap(ptr, bytes, 0, *handle, 0);
	if (code != 0) {
		t->cuMemRelease(*handle);
		return code;
	}
	for (size_t i = 0; i <= peer_count; i++) {
		access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access[i].location.id = i == 0 ? device : peers[i - 1];
		access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	code = t->cuMemSetAccess(ptr, bytes, access, peer_count + 1);
	if (code != 0) {
		t->cuMemUnmap(ptr, bytes);
		t->cuMemRelease(*handle);
	}
	return code;
}

int tr_unmap(const trctl_driver *t, tr_h ctx, tr_ptr ptr, size_t bytes, unsigned long long handle) {
	ENTER;
	int unmapped = t->cuMemUnmap(ptr, bytes);
	int released = t->cuMemRelease(handle);
	return unmapped != 0 ? unmapped : released;
}

int tr_stream_create(const trctl_driver *t, tr_h ctx, int priority, tr_h *stream) { ENTER; return t->cuStreamCreateWithPriority((void **)stream, CU_STREAM_NON_BLOCKING, priority); }
int tr_stream_destroy(const trctl_driver *t, tr_h ctx, tr_h stream) { ENTER; return t->cuStreamDestroy_v2((void *)stream); }
int tr_stream_synchronize(const trctl_driver *t, tr_h ctx, tr_h stream) { ENTER; return t->cuStreamSynchronize((void *)stream); }
int tr_stream_query(const trctl_driver *t, tr_h ctx, tr_h stream) { ENTER; return t->cuStreamQuery((void *)stream); }
int tr_stream_wait(const trctl_driver *t, tr_h ctx, tr_h stream, tr_h event) { ENTER; return t->cuStreamWaitEvent((void *)stream, (void *)event, 0); }
int tr_capture_begin(const trctl_driver *t, tr_h ctx, tr_h stream, int mode) { ENTER; return t->cuStreamBeginCapture_v2((void *)stream, mode); }
int tr_capture_end(const trctl_driver *t, tr_h ctx, tr_h stream, tr_h *graph) { ENTER; return t->cuStreamEndCapture((void *)stream, (void **)graph); }

int tr_event_create(const trctl_driver *t, tr_h ctx, unsigned flags, tr_h *event) { ENTER; return t->cuEventCreate((void **)event, flags); }
int tr_event_destroy(const trctl_driver *t, tr_h ctx, tr_h event) { ENTER; return t->cuEventDestroy_v2((void *)event); }
int tr_event_record(const trctl_driver *t, tr_h ctx, tr_h event, tr_h stream) { ENTER; return t->cuEventRecord((void *)event, (void *)stream); }
int tr_event_synchronize(const trctl_driver *t, tr_h ctx, tr_h event) { ENTER; return t->cuEventSynchronize((void *)event); }
int tr_event_query(const trctl_driver *t, tr_h ctx, tr_h event) { ENTER; return t->cuEventQuery((void *)event); }
int tr_event_elapsed(const trctl_driver *t, tr_h ctx, tr_h start, tr_h end, float *ms) { ENTER; return t->cuEventElapsedTime(ms, (void *)start, (void *)end); }

int tr_module_load(const trctl_driver *t, tr_h ctx, const void *image, tr_h *module) { ENTER; return t->cuModuleLoadData((void **)module, image); }
int tr_module_unload(const trctl_driver *t, tr_h ctx, tr_h module) { ENTER; return t->cuModuleUnload((void *)module); }
int tr_module_function(const trctl_driver *t, tr_h ctx, tr_h module, const char *name, tr_h *function) { ENTER; return t->cuModuleGetFunction((void **)function, (void *)module, name); }
int tr_module_global(const trctl_driver *t, tr_h ctx, tr_h module, const char *name, tr_ptr *ptr, size_t *bytes) { ENTER; return t->cuModuleGetGlobal_v2(ptr, bytes, (void *)module, name); }
int tr_function_attribute(const trctl_driver *t, tr_h ctx, tr_h function, int attribute, int *value) { ENTER; return t->cuFuncGetAttribute(value, attribute, (void *)function); }
int tr_function_set(const trctl_driver *t, tr_h ctx, tr_h function, int attribute, int value) { ENTER; return t->cuFuncSetAttribute((void *)function, attribute, value); }

int tr_function_occupancy(const trctl_driver *t, tr_h ctx, tr_h function, int block, size_t shared_bytes, int *blocks) {
	ENTER;
	return t->cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (void *)function, block, shared_bytes);
}

int tr_function_params(const trctl_driver *t, tr_h ctx, tr_h function, int *bytes) {
	size_t offset = 0, size = 0;
	*bytes = -1;
	if (t->cuFuncGetParamInfo == NULL) return 0;
	ENTER;
	int code = t->cuFuncGetParamInfo((void *)function, 0, &offset, &size);
	if (code == CU_INVALID_VALUE) { // there is no parameter 0
		*bytes = 0;
		return 0;
	}
	if (code != 0) return code;
	*bytes = (int)size;
	if (t->cuFuncGetParamInfo((void *)function, 1, &offset, &size) == 0) *bytes = -2;
	return 0;
}

int tr_launch_kernel(const trctl_driver *t, tr_h ctx, tr_h stream, tr_h function, const tr_launch *l, const void *params) {
	// The driver copies as many bytes as the kernel declares, so the copy here is padded with zeros up to the limit
	// only when Go could not compare the sizes; it always could when the driver knows them.
	_Alignas(16) unsigned char block[TR_MAX_PARAM_BYTES];
	_Alignas(8) tr_launch_attribute attributes[3];
	unsigned count = 0;
	if (l->param_bytes > TR_MAX_PARAM_BYTES) return CU_INVALID_VALUE;
	memcpy(block, params, l->param_bytes);
	if (t->cuFuncGetParamInfo == NULL) memset(block + l->param_bytes, 0, sizeof block - l->param_bytes);
	if (l->flags & TR_LAUNCH_PDL) {
		memset(&attributes[count], 0, sizeof attributes[count]);
		attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
		attributes[count++].value.flag = 1;
	}
	if (l->flags & TR_LAUNCH_COOPERATIVE) {
		memset(&attributes[count], 0, sizeof attributes[count]);
		attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
		attributes[count++].value.flag = 1;
	}
	if (l->flags & TR_LAUNCH_CLUSTER) {
		memset(&attributes[count], 0, sizeof attributes[count]);
		attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
		attributes[count].value.dim.x = l->cluster[0];
		attributes[count].value.dim.y = l->cluster[1];
		attributes[count++].value.dim.z = l->cluster[2];
	}
	tr_launch_config config = {
		.grid = {l->grid[0], l->grid[1], l->grid[2]},
		.block = {l->block[0], l->block[1], l->block[2]},
		.shared_bytes = l->shared_bytes,
		.stream = (void *)stream,
		.attributes = count > 0 ? attributes : NULL,
		.attribute_count = count,
	};
	void *pointers[1] = {block};
	ENTER;
	return t->cuLaunchKernelEx(&config, (void *)function, l->param_bytes > 0 ? pointers : NULL, NULL);
}

int tr_graph_nodes(const trctl_driver *t, tr_h ctx, tr_h graph, size_t *count) { ENTER; return t->cuGraphGetNodes((void *)graph, NULL, count); }
int tr_graph_destroy(const trctl_driver *t, tr_h ctx, tr_h graph) { ENTER; return t->cuGraphDestroy((void *)graph); }
int tr_graph_instantiate(const trctl_driver *t, tr_h ctx, tr_h graph, tr_h *exec) { ENTER; return t->cuGraphInstantiateWithFlags((void **)exec, (void *)graph, 0); }
int tr_graph_upload(const trctl_driver *t, tr_h ctx, tr_h exec, tr_h stream) { ENTER; return t->cuGraphUpload((void *)exec, (void *)stream); }
int tr_graph_launch(const trctl_driver *t, tr_h ctx, tr_h exec, tr_h stream) { ENTER; return t->cuGraphLaunch((void *)exec, (void *)stream); }
int tr_exec_destroy(const trctl_driver *t, tr_h ctx, tr_h exec) { ENTER; return t->cuGraphExecDestroy((void *)exec); }
