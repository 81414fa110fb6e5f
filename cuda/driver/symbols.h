// The part of the CUDA driver API that TokenRouter uses, declared here so that no CUDA header is needed to build.
//
// Every function returns a CUresult as int. Handles are opaque pointers; device addresses are 64-bit numbers.
// Names carry the version suffix that the library exports, because dlsym does no renaming.
#ifndef TRCTL_DRIVER_SYMBOLS_H
#define TRCTL_DRIVER_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned long long tr_ptr; // CUdeviceptr

typedef struct tr_launch_attribute { // CUlaunchAttribute
	int id;
	char pad[4];
	union {
		char bytes[64];
		int flag;
		struct { unsigned x, y, z; } dim;
	} value;
} tr_launch_attribute;

typedef struct tr_launch_config { // CUlaunchConfig
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	void *stream;
	tr_launch_attribute *attributes;
	unsigned attribute_count;
} tr_launch_config;

typedef struct tr_location { int type, id; } tr_location; // CUmemLocation

typedef struct tr_alloc_prop { // CUmemAllocationProp
	int type;
	int handle_types;
	tr_location location;
	void *win32_meta;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
} tr_alloc_prop;

typedef struct tr_access { tr_location location; int flags; } tr_access; // CUmemAccessDesc

_Static_assert(sizeof(tr_launch_attribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(tr_launch_config) == 56, "CUlaunchConfig");
_Static_assert(sizeof(tr_alloc_prop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(tr_access) == 12, "CUmemAccessDesc");

// X(name, parameters): the driver must export it.
#define TRCTL_REQUIRED(X) \
	X(cuInit, (unsigned flags)) \
	X(cuDriverGetVersion, (int *version)) \
	X(cuGetErrorName, (int code, const char **name)) \
	X(cuGetErrorString, (int code, const char **text)) \
	X(cuDeviceGetCount, (int *count)) \
	X(cuDeviceGet, (int *device, int ordinal)) \
	X(cuDeviceGetName, (char *name, int size, int device)) \
	X(cuDeviceGetUuid_v2, (void *uuid, int device)) \
	X(cuDeviceGetPCIBusId, (char *id, int size, int device)) \
	X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
	X(cuDeviceTotalMem_v2, (size_t *bytes, int device)) \
	X(cuDeviceCanAccessPeer, (int *can, int device, int peer)) \
	X(cuDevicePrimaryCtxRetain, (void **ctx, int device)) \
	X(cuDevicePrimaryCtxRelease_v2, (int device)) \
	X(cuDevicePrimaryCtxReset_v2, (int device)) \
	X(cuCtxSetCurrent, (void *ctx)) \
	X(cuCtxSynchronize, (void)) \
	X(cuCtxEnablePeerAccess, (void *peer, unsigned flags)) \
	X(cuCtxGetStreamPriorityRange, (int *least, int *greatest)) \
	X(cuMemGetInfo_v2, (size_t *free, size_t *total)) \
	X(cuMemAlloc_v2, (tr_ptr *ptr, size_t bytes)) \
	X(cuMemFree_v2, (tr_ptr ptr)) \
	X(cuMemHostAlloc, (void **ptr, size_t bytes, unsigned flags)) \
	X(cuMemFreeHost, (void *ptr)) \
	X(cuMemHostGetDevicePointer_v2, (tr_ptr *device, void *host, unsigned flags)) \
	X(cuMemcpyHtoD_v2, (tr_ptr dst, const void *src, size_t bytes)) \
	X(cuMemcpyDtoH_v2, (void *dst, tr_ptr src, size_t bytes)) \
	X(cuMemcpyHtoDAsync_v2, (tr_ptr dst, const void *src, size_t bytes, void *stream)) \
	X(cuMemcpyDtoHAsync_v2, (void *dst, tr_ptr src, size_t bytes, void *stream)) \
	X(cuMemcpyDtoDAsync_v2, (tr_ptr dst, tr_ptr src, size_t bytes, void *stream)) \
	X(cuMemcpyPeerAsync, (tr_ptr dst, void *dst_ctx, tr_ptr src, void *src_ctx, size_t bytes, void *stream)) \
	X(cuMemsetD8Async, (tr_ptr dst, unsigned char value, size_t count, void *stream)) \
	X(cuMemsetD32Async, (tr_ptr dst, unsigned value, size_t count, void *stream)) \
	X(cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority)) \
	X(cuStreamDestroy_v2, (void *stream)) \
	X(cuStreamSynchronize, (void *stream)) \
	X(cuStreamQuery, (void *stream)) \
	X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) \
	X(cuStreamBeginCapture_v2, (void *stream, int mode)) \
	X(cuStreamEndCapture, (void *stream, void **graph)) \
	X(cuEventCreate, (void **event, unsigned flags)) \
	X(cuEventDestroy_v2, (void *event)) \
	X(cuEventRecord, (void *event, void *stream)) \
	X(cuEventSynchronize, (void *event)) \
	X(cuEventQuery, (void *event)) \
	X(cuEventElapsedTime, (float *ms, void *start, void *end)) \
	X(cuModuleLoadData, (void **module, const void *image)) \
	X(cuModuleUnload, (void *module)) \
	X(cuModuleGetFunction, (void **function, void *module, const char *name)) \
	X(cuModuleGetGlobal_v2, (tr_ptr *ptr, size_t *bytes, void *module, const char *name)) \
	X(cuFuncGetAttribute, (int *value, int attribute, void *function)) \
	X(cuFuncSetAttribute, (void *function, int attribute, int value)) \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, void *function, int block, size_t shared_bytes)) \
	X(cuLaunchKernelEx, (const tr_launch_config *config, void *function, void **params, void **extra)) \
	X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
	X(cuGraphGetNodes, (void *graph, void **nodes, size_t *count)) \
	X(cuGraphDestroy, (void *graph)) \
	X(cuGraphUpload, (void *exec, void *stream)) \
	X(cuGraphLaunch, (void *exec, void *stream)) \
	X(cuGraphExecDestroy, (void *exec)) \
	X(cuMemGetAllocationGranularity, (size_t *bytes, const tr_alloc_prop *prop, int option)) \
	X(cuMemAddressReserve, (tr_ptr *ptr, size_t bytes, size_t alignment, tr_ptr want, unsigned long long flags)) \
	X(cuMemAddressFree, (tr_ptr ptr, size_t bytes)) \
	X(cuMemCreate, (unsigned long long *handle, size_t bytes, const tr_alloc_prop *prop, unsigned long long flags)) \
	X(cuMemRelease, (unsigned long long handle)) \
	X(cuMemMap, (tr_ptr ptr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)) \
	X(cuMemUnmap, (tr_ptr ptr, size_t bytes)) \
	X(cuMemSetAccess, (tr_ptr ptr, size_t bytes, const tr_access *access, size_t count))

// X(name, parameters): newer drivers export it; NULL in the table otherwise.
#define TRCTL_OPTIONAL(X) \
	X(cuFuncGetParamInfo, (void *function, size_t index, size_t *offset, size_t *bytes))

#define TRCTL_FIELD(name, parameters) int (*name) parameters;

// The table of driver functions. The real one is filled by dlsym, the fake one by package drivertest.
typedef struct trctl_driver {
	TRCTL_REQUIRED(TRCTL_FIELD)
	TRCTL_OPTIONAL(TRCTL_FIELD)
} trctl_driver;

#endif
