//go:build linux && amd64

#define _GNU_SOURCE
#include "table.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801 };
enum { PAGE = 4096 };

static int backwards;

void simt_backwards(int on) { backwards = on; }

// take gives memory whose end touches a page that cannot be accessed. The header page before it holds the sizes.
static void *take(size_t bytes) {
	const size_t rounded = (bytes + 15) / 16 * 16, pages = (rounded + PAGE - 1) / PAGE * PAGE;
	char *base = mmap(NULL, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED) return NULL;
	mprotect(base + PAGE + pages, PAGE, PROT_NONE);
	char *p = base + PAGE + pages - rounded;
	if (bytes <= 256 << 20) memset(p, 0xff, rounded);
	((size_t *)base)[0] = pages;
	return p;
}

static void give(void *p) {
	char *base = (char *)((uintptr_t)p / PAGE * PAGE) - PAGE;
	munmap(base, ((size_t *)base)[0] + 2 * PAGE);
}

static int init(unsigned flags) { return OK; }
static int version(int *v) { *v = 13000; return OK; }
static int error_name(int code, const char **name) {
	*name = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
	return OK;
}
static int error_text(int code, const char **text) {
	*text = code == LAUNCH_FAILED ? "some threads wait for others that never come" : "error of the simulated device";
	return OK;
}
static int device_count(int *n) { *n = 1; return OK; }
static int device_get(int *device, int ordinal) { *device = ordinal; return OK; }
static int device_name(char *name, int size, int device) { snprintf(name, size, "simulated"); return OK; }
static int device_uuid(void *uuid, int device) { memset(uuid, 0, 16); return OK; }
static int device_pci(char *id, int size, int device) { snprintf(id, size, "0000:00:00.0"); return OK; }
static int device_attribute(int *value, int attribute, int device) {
	switch (attribute) {
	case 16: *value = 4; break;      // multiprocessors
	case 19: case 41: *value = 1; break;
	case 75: *value = 9; break;      // compute capability 9.0, whose kernels are the most
	case 1: *value = 1024; break;
	case 97: *value = 227 << 10; break; // shared memory of a block
	default: *value = 0;
	}
	return OK;
}
static int device_memory(size_t *bytes, int device) { *bytes = (size_t)8 << 30; return OK; }
static int can_peer(int *can, int a, int b) { *can = 0; return OK; }
static int retain(void **ctx, int device) { *ctx = (void *)1; return OK; }
static int release(int device) { return OK; }
static int set_current(void *ctx) { return OK; }
static int synchronize(void) { return OK; }
static int enable_peer(void *peer, unsigned flags) { return NOT_SUPPORTED; }
static int priorities(int *least, int *greatest) { *least = 0, *greatest = -1; return OK; }
static int mem_info(size_t *free_bytes, size_t *total) { *free_bytes = *total = (size_t)8 << 30; return OK; }
static int mem_alloc(tr_ptr *p, size_t bytes) {
	void *m = take(bytes);
	*p = (tr_ptr)(uintptr_t)m;
	return m ? OK : NO_MEMORY;
}
static int mem_free(tr_ptr p) { give((void *)(uintptr_t)p); return OK; }
static int host_alloc(void **p, size_t bytes, unsigned flags) { *p = take(bytes); return *p ? OK : NO_MEMORY; }
static int host_free(void *p) { give(p); return OK; }
static int host_pointer(tr_ptr *device, void *host, unsigned flags) { *device = (tr_ptr)(uintptr_t)host; return OK; }
static int htod(tr_ptr dst, const void *src, size_t n) { memcpy((void *)(uintptr_t)dst, src, n); return OK; }
static int dtoh(void *dst, tr_ptr src, size_t n) { memcpy(dst, (void *)(uintptr_t)src, n); return OK; }
static int htod_async(tr_ptr dst, const void *src, size_t n, void *s) { return htod(dst, src, n); }
static int dtoh_async(void *dst, tr_ptr src, size_t n, void *s) { return dtoh(dst, src, n); }
static int dtod_async(tr_ptr dst, tr_ptr src, size_t n, void *s) { return htod(dst, (void *)(uintptr_t)src, n); }
static int copy_peer(tr_ptr d, void *dc, tr_ptr s, void *sc, size_t n, void *stream) { return NOT_SUPPORTED; }
static int set8(tr_ptr dst, unsigned char v, size_t n, void *s) { memset((void *)(uintptr_t)dst, v, n); return OK; }
static int set32(tr_ptr dst, unsigned v, size_t n, void *s) {
	for (size_t i = 0; i < n; i++) ((unsigned *)(uintptr_t)dst)[i] = v;
	return OK;
}
static int stream_create(void **s, unsigned flags, int priority) { *s = malloc(8); return OK; }
static int stream_destroy(void *s) { free(s); return OK; }
static int stream_ok(void *s) { return OK; }
static int stream_wait(void *s, void *e, unsigned flags) { return OK; }

// A graph is a list of launches with copies of their parameters. An executable shares the list.
typedef struct node {
	void *function;
	unsigned grid[3], block[3];
	void *params;
	struct node *next;
} node;
typedef struct graph {
	node *first, **end;
	size_t nodes;
	int users;
} graph;
static graph *recording;
static void *recorded_stream;

static int capture_begin(void *s, int mode) {
	if (recording) return INVALID;
	recording = calloc(1, sizeof(graph));
	recording->end = &recording->first;
	recording->users = 1;
	recorded_stream = s;
	return OK;
}
static int capture_end(void *s, void **g) {
	if (!recording || s != recorded_stream) return INVALID;
	*g = recording;
	recording = NULL;
	return OK;
}
static int graph_leave(void *p) {
	graph *g = p;
	if (--g->users > 0) return OK;
	for (node *n = g->first; n;) {
		node *next = n->next;
		free(n->params);
		free(n);
		n = next;
	}
	free(g);
	return OK;
}
static int graph_join(void **exec, void *g, unsigned long long flags) {
	((graph *)g)->users++;
	*exec = g;
	return OK;
}
static int graph_nodes(void *g, void **nodes, size_t *n) { *n = ((graph *)g)->nodes; return OK; }
static int graph_upload(void *g, void *s) { return OK; }

typedef struct event { struct timespec at; } event;
static int event_create(void **e, unsigned flags) { *e = calloc(1, sizeof(event)); return OK; }
static int event_destroy(void *e) { free(e); return OK; }
static int event_record(void *e, void *s) { clock_gettime(CLOCK_MONOTONIC, &((event *)e)->at); return OK; }
static int event_ok(void *e) { return OK; }
static int event_elapsed(float *ms, void *a, void *b) {
	const event *x = a, *y = b;
	*ms = (y->at.tv_sec - x->at.tv_sec) * 1e3f + (y->at.tv_nsec - x->at.tv_nsec) * 1e-6f;
	return OK;
}

typedef struct function {
	int (*run)(const void *params, const unsigned *grid, const unsigned *block, int backwards);
	int bytes;
	struct function *next;
} function;
typedef struct module {
	void *library;
	function *functions;
} module;

static int module_load(void **m, const void *image) {
	void *library = dlopen(image, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "simt: %s\n", dlerror());
		return INVALID;
	}
	module *mod = calloc(1, sizeof(module));
	mod->library = library;
	*m = mod;
	return OK;
}
static int module_unload(void *m) {
	module *mod = m;
	for (function *f = mod->functions; f;) {
		function *next = f->next;
		free(f);
		f = next;
	}
	dlclose(mod->library);
	free(mod);
	return OK;
}
static int module_function(void **out, void *m, const char *name) {
	module *mod = m;
	char symbol[160];
	snprintf(symbol, sizeof symbol, "simt_run_%s", name);
	void *run = dlsym(mod->library, symbol);
	snprintf(symbol, sizeof symbol, "simt_bytes_%s", name);
	int (*bytes)(void) = (int (*)(void))dlsym(mod->library, symbol);
	if (!run || !bytes) return NOT_FOUND;
	function *f = calloc(1, sizeof(function));
	f->run = (int (*)(const void *, const unsigned *, const unsigned *, int))run;
	f->bytes = bytes();
	f->next = mod->functions;
	mod->functions = f;
	*out = f;
	return OK;
}
static int module_global(tr_ptr *p, size_t *bytes, void *m, const char *name) {
	void *at = dlsym(((module *)m)->library, name);
	Dl_info info;
	ElfW(Sym) *symbol = NULL;
	if (!at || !dladdr1(at, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol) return NOT_FOUND;
	*p = (tr_ptr)(uintptr_t)at, *bytes = symbol->st_size;
	return OK;
}
static int func_attribute(int *value, int attribute, void *f) { *value = attribute == 0 ? 1024 : 0; return OK; }
static int func_set(void *f, int attribute, int value) { return OK; }
static int occupancy(int *blocks, void *f, int block, size_t shared) { *blocks = 1; return OK; }
static int param_info(void *f, size_t index, size_t *offset, size_t *bytes) {
	if (index > 0) return INVALID;
	*offset = 0, *bytes = ((function *)f)->bytes;
	return OK;
}

// The emulator keeps the running thread in a variable of the module, so launches run one at a time.
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static int play(function *f, const void *params, const unsigned *grid, const unsigned *block) {
	pthread_mutex_lock(&one);
	const int rc = f->run(params, grid, block, backwards);
	pthread_mutex_unlock(&one);
	return rc == 0 ? OK : LAUNCH_FAILED;
}
static int launch(const tr_launch_config *c, void *f, void **params, void **extra) {
	if (recording && c->stream == recorded_stream) {
		node *n = calloc(1, sizeof(node));
		n->function = f;
		memcpy(n->grid, c->grid, sizeof n->grid);
		memcpy(n->block, c->block, sizeof n->block);
		const int bytes = ((function *)f)->bytes;
		n->params = malloc(bytes);
		memcpy(n->params, params[0], bytes);
		*recording->end = n;
		recording->end = &n->next;
		recording->nodes++;
		return OK;
	}
	return play(f, params[0], c->grid, c->block);
}
static int graph_launch(void *g, void *s) {
	for (node *n = ((graph *)g)->first; n; n = n->next) {
		const int rc = play(n->function, n->params, n->grid, n->block);
		if (rc != OK) return rc;
	}
	return OK;
}
static int granularity(size_t *bytes, const tr_alloc_prop *p, int option) { *bytes = 2 << 20; return OK; }
static int no_reserve(tr_ptr *p, size_t b, size_t a, tr_ptr w, unsigned long long f) { return NOT_SUPPORTED; }
static int no_range(tr_ptr p, size_t b) { return NOT_SUPPORTED; }
static int no_create(unsigned long long *h, size_t b, const tr_alloc_prop *p, unsigned long long f) { return NOT_SUPPORTED; }
static int no_release(unsigned long long h) { return NOT_SUPPORTED; }
static int no_map(tr_ptr p, size_t b, size_t o, unsigned long long h, unsigned long long f) { return NOT_SUPPORTED; }
static int no_access(tr_ptr p, size_t b, const tr_access *a, size_t n) { return NOT_SUPPORTED; }

trctl_driver *simt_table(void) {
	static trctl_driver t = {
		.cuInit = init, .cuDriverGetVersion = version, .cuGetErrorName = error_name, .cuGetErrorString = error_text,
		.cuDeviceGetCount = device_count, .cuDeviceGet = device_get, .cuDeviceGetName = device_name,
		.cuDeviceGetUuid_v2 = device_uuid, .cuDeviceGetPCIBusId = device_pci, .cuDeviceGetAttribute = device_attribute,
		.cuDeviceTotalMem_v2 = device_memory, .cuDeviceCanAccessPeer = can_peer, .cuDevicePrimaryCtxRetain = retain,
		.cuDevicePrimaryCtxRelease_v2 = release, .cuDevicePrimaryCtxReset_v2 = release, .cuCtxSetCurrent = set_current, .cuCtxSynchronize = synchronize,
		.cuCtxEnablePeerAccess = enable_peer, .cuCtxGetStreamPriorityRange = priorities, .cuMemGetInfo_v2 = mem_info,
		.cuMemAlloc_v2 = mem_alloc, .cuMemFree_v2 = mem_free, .cuMemHostAlloc = host_alloc, .cuMemFreeHost = host_free,
		.cuMemHostGetDevicePointer_v2 = host_pointer, .cuMemcpyHtoD_v2 = htod, .cuMemcpyDtoH_v2 = dtoh,
		.cuMemcpyHtoDAsync_v2 = htod_async, .cuMemcpyDtoHAsync_v2 = dtoh_async, .cuMemcpyDtoDAsync_v2 = dtod_async,
		.cuMemcpyPeerAsync = copy_peer, .cuMemsetD8Async = set8, .cuMemsetD32Async = set32,
		.cuStreamCreateWithPriority = stream_create, .cuStreamDestroy_v2 = stream_destroy,
		.cuStreamSynchronize = stream_ok, .cuStreamQuery = stream_ok, .cuStreamWaitEvent = stream_wait,
		.cuStreamBeginCapture_v2 = capture_begin, .cuStreamEndCapture = capture_end, .cuEventCreate = event_create,
		.cuEventDestroy_v2 = event_destroy, .cuEventRecord = event_record, .cuEventSynchronize = event_ok,
		.cuEventQuery = event_ok, .cuEventElapsedTime = event_elapsed, .cuModuleLoadData = module_load,
		.cuModuleUnload = module_unload, .cuModuleGetFunction = module_function, .cuModuleGetGlobal_v2 = module_global,
		.cuFuncGetAttribute = func_attribute, .cuFuncSetAttribute = func_set,
		.cuOccupancyMaxActiveBlocksPerMultiprocessor = occupancy, .cuLaunchKernelEx = launch,
		.cuGraphInstantiateWithFlags = graph_join, .cuGraphGetNodes = graph_nodes, .cuGraphDestroy = graph_leave,
		.cuGraphUpload = graph_upload, .cuGraphLaunch = graph_launch, .cuGraphExecDestroy = graph_leave,
		.cuMemGetAllocationGranularity = granularity, .cuMemAddressReserve = no_reserve, .cuMemAddressFree = no_range,
		.cuMemCreate = no_create, .cuMemRelease = no_release, .cuMemMap = no_map, .cuMemUnmap = no_range,
		.cuMemSetAccess = no_access, .cuFuncGetParamInfo = param_info,
	};
	return &t;
}
