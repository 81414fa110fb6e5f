// Shims between Go and the driver table. Each makes the context current first, because a goroutine may have moved to
// another thread since the last call. Handles cross as integers, so Go's garbage collector never looks at them.
#ifndef TRCTL_DRIVER_SHIM_H
#define TRCTL_DRIVER_SHIM_H

#include "symbols.h"

typedef uintptr_t tr_h;

// One launch, as Go fills it. The flags are bits of TR_LAUNCH_*.
typedef struct tr_launch {
	unsigned grid[3];
	unsigned block[3];
	unsigned cluster[3];
	unsigned shared_bytes;
	unsigned flags;
	unsigned param_bytes;
} tr_launch;

#define TR_LAUNCH_PDL 1u
#define TR_LAUNCH_COOPERATIVE 2u
#define TR_LAUNCH_CLUSTER 4u

// The parameter block of one kernel is at most this large; CUDA's limit for all compute capabilities.
#define TR_MAX_PARAM_BYTES 4096

// tr_resolve fills a table from a dlopen handle. It returns NULL, or the name of the first missing required symbol.
const char *tr_resolve(trctl_driver *t, tr_h library);
// tr_missing returns NULL, or the name of the first required entry of a ready table that is not set.
const char *tr_missing(const trctl_driver *t);

int tr_init(const trctl_driver *t);
int tr_driver_version(const trctl_driver *t, int *version);
const char *tr_error_name(const trctl_driver *t, int code);
const char *tr_error_text(const trctl_driver *t, int code);

int tr_device_count(const trctl_driver *t, int *count);
int tr_device_get(const trctl_driver *t, int ordinal, int *device);
int tr_device_name(const trctl_driver *t, int device, char *name, int size);
int tr_device_uuid(const trctl_driver *t, int device, void *uuid);
int tr_device_pci(const trctl_driver *t, int device, char *id, int size);
int tr_device_attribute(const trctl_driver *t, int device, int attribute, int *value);
int tr_device_memory(const trctl_driver *t, int device, size_t *bytes);
int tr_device_peer(const trctl_driver *t, int device, int peer, int *can);

int tr_ctx_retain(const trctl_driver *t, int device, tr_h *ctx);
int tr_ctx_release(const trctl_driver *t, int device);
int tr_ctx_reset(const trctl_driver *t, int device);
int tr_ctx_synchronize(const trctl_driver *t, tr_h ctx);
int tr_ctx_enable_peer(const trctl_driver *t, tr_h ctx, tr_h peer);
int tr_ctx_priorities(const trctl_driver *t, tr_h ctx, int *least, int *greatest);

int tr_mem_available(const trctl_driver *t, tr_h ctx, size_t *free, size_t *total);
int tr_mem_alloc(const trctl_driver *t, tr_h ctx, size_t bytes, tr_ptr *ptr);
int tr_mem_free(const trctl_driver *t, tr_h ctx, tr_ptr ptr);
int tr_host_alloc(const trctl_driver *t, tr_h ctx, size_t bytes, unsigned flags, void **host, tr_ptr *device);
int tr_host_free(const trctl_driver *t, tr_h ctx, void *host);
int tr_write(const trctl_driver *t, tr_h ctx, tr_ptr dst, const void *src, size_t bytes);
int tr_read(const trctl_driver *t, tr_h ctx, void *dst, tr_ptr src, size_t bytes);
int tr_copy_htod(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, const void *src, size_t bytes);
int tr_copy_dtoh(const trctl_driver *t, tr_h ctx, tr_h stream, void *dst, tr_ptr src, size_t bytes);
int tr_copy_dtod(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, tr_ptr src, size_t bytes);
int tr_copy_peer(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, tr_h dst_ctx, tr_ptr src, tr_h src_ctx, size_t bytes);
int tr_set8(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, unsigned value, size_t count);
int tr_set32(const trctl_driver *t, tr_h ctx, tr_h stream, tr_ptr dst, unsigned value, size_t count);

int tr_granularity(const trctl_driver *t, int device, size_t *bytes);
int tr_reserve(const trctl_driver *t, tr_h ctx, size_t bytes, tr_ptr *ptr);
int tr_unreserve(const trctl_driver *t, tr_h ctx, tr_ptr ptr, size_t bytes);
int tr_map(const trctl_driver *t, tr_h ctx, int device, tr_ptr ptr, size_t bytes, const int *peers, size_t peer_count, unsigned long long *handle);
int tr_unmap(const trctl_driver *t, tr_h ctx, tr_ptr ptr, size_t bytes, unsigned long long handle);

int tr_stream_create(const trctl_driver *t, tr_h ctx, int priority, tr_h *stream);
int tr_stream_destroy(const trctl_driver *t, tr_h ctx, tr_h stream);
int tr_stream_synchronize(const trctl_driver *t, tr_h ctx, tr_h stream);
int tr_stream_query(const trctl_driver *t, tr_h ctx, tr_h stream);
int tr_stream_wait(const trctl_driver *t, tr_h ctx, tr_h stream, tr_h event);
int tr_capture_begin(const trctl_driver *t, tr_h ctx, tr_h stream, int mode);
int tr_capture_end(const trctl_driver *t, tr_h ctx, tr_h stream, tr_h *graph);

int tr_event_create(const trctl_driver *t, tr_h ctx, unsigned flags, tr_h *event);
int tr_event_destroy(const trctl_driver *t, tr_h ctx, tr_h event);
int tr_event_record(const trctl_driver *t, tr_h ctx, tr_h event, tr_h stream);
int tr_event_synchronize(const trctl_driver *t, tr_h ctx, tr_h event);
int tr_event_query(const trctl_driver *t, tr_h ctx, tr_h event);
int tr_event_elapsed(const trctl_driver *t, tr_h ctx, tr_h start, tr_h end, float *ms);

int tr_module_load(const trctl_driver *t, tr_h ctx, const void *image, tr_h *module);
int tr_module_unload(const trctl_driver *t, tr_h ctx, tr_h module);
int tr_module_function(const trctl_driver *t, tr_h ctx, tr_h module, const char *name, tr_h *function);
int tr_module_global(const trctl_driver *t, tr_h ctx, tr_h module, const char *name, tr_ptr *ptr, size_t *bytes);
int tr_function_attribute(const trctl_driver *t, tr_h ctx, tr_h function, int attribute, int *value);
int tr_function_set(const trctl_driver *t, tr_h ctx, tr_h function, int attribute, int value);
int tr_function_occupancy(const trctl_driver *t, tr_h ctx, tr_h function, int block, size_t shared_bytes, int *blocks);
// tr_function_params sets *bytes to the size of the only parameter, 0 when the kernel has none, or -1 when the
// driver cannot say, or when the kernel has more than one parameter (-2).
int tr_function_params(const trctl_driver *t, tr_h ctx, tr_h function, int *bytes);

int tr_launch_kernel(const trctl_driver *t, tr_h ctx, tr_h stream, tr_h function, const tr_launch *l, const void *params);

int tr_graph_nodes(const trctl_driver *t, tr_h ctx, tr_h graph, size_t *count);
int tr_graph_destroy(const trctl_driver *t, tr_h ctx, tr_h graph);
int tr_graph_instantiate(const trctl_driver *t, tr_h ctx, tr_h graph, tr_h *exec);
int tr_graph_upload(const trctl_driver *t, tr_h ctx, tr_h exec, tr_h stream);
int tr_graph_launch(const trctl_driver *t, tr_h ctx, tr_h exec, tr_h stream);
int tr_exec_destroy(const trctl_driver *t, tr_h ctx, tr_h exec);

#endif
