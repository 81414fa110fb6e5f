//go:build linux && cgo

#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, PEER_ENABLED = 704, NOT_FOUND = 500, NOT_READY = 600,
	CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, GRANULE = 2 << 20, MAX_NODES = 512, MAX_FAILS = 16 };

typedef struct graph { long nodes; int count; int launches[MAX_NODES]; int refs; size_t bytes; } graph;
typedef struct stream { graph *capture; int open, invalid; } stream;
typedef struct event { int recorded, timing; double at; } event;
typedef struct function { char name[FAKE_NAME]; int max_shared; struct function *next; } function;
typedef struct module { function *functions; tr_ptr global; } module;
typedef struct block { void *at; size_t bytes; int device, kind; struct block *next; } block;
typedef struct fail { char op[FAKE_NAME]; int nth, code; } fail;

// The one simulated driver. Guarded by mu.
static struct {
	pthread_mutex_t mu;
	trctl_driver table;
	int version, devices, param_bytes, has_param_sizes, poison, busy;
	size_t memory, graph_bytes, used[FAKE_MAX_DEVICES];
	int peers[FAKE_MAX_DEVICES][FAKE_MAX_DEVICES];
	char calls[FAKE_MAX_CALLS][FAKE_NAME];
	long call_count, launch_count;
	fake_launch launches[FAKE_MAX_LAUNCHES];
	block *blocks;
	fail fails[MAX_FAILS];
	int fail_count;
	char missing_kernel[FAKE_NAME];
	double clock_ms;
	fake_open open[FAKE_MAX_DEVICES];
	int faults[FAKE_MAX_DEVICES]; // what calls in a lost context return, 0 in a sound one
} F = {.mu = PTHREAD_MUTEX_INITIALIZER};

static char contexts[FAKE_MAX_DEVICES]; // a context's handle is the address of its device's byte
static _Thread_local void *current;

static void copy_name(char *dst, const char *src) { snprintf(dst, FAKE_NAME, "%s", src); }

static int here(void) { return (int)((char *)current - contexts); }

// Records a call and returns the code that the test wants for it, or 0.
static int note(const char *op, int needs_context) {
	if (F.call_count < FAKE_MAX_CALLS) copy_name(F.calls[F.call_count], op);
	F.call_count++;
	if (F.poison) return F.poison;
	for (int i = 0; i < F.fail_count; i++) {
		if (strcmp(F.fails[i].op, op) != 0 || F.fails[i].nth <= 0) continue;
		if (--F.fails[i].nth == 0) return F.fails[i].code;
	}
	if (!needs_context) return 0;
	return current == NULL ? INVALID_CONTEXT : F.faults[here()];
}

// Each fake function is BEGIN(name, needs context) … END(code).
#define BEGIN(op, ctx) \
	pthread_mutex_lock(&F.mu); \
	int code = note(#op, ctx); \
	if (code == 0) {
#define END \
	} \
	pthread_mutex_unlock(&F.mu); \
	return code;

static block *find(const void *at, int kind) {
	for (block *b = F.blocks; b != NULL; b = b->next)
		if (b->at == at && b->kind == kind) return b;
	return NULL;
}

// Whether open blocks cover [at, at+bytes) without a gap; a range may cross from one mapped piece into the next.
static int covered(const void *at, size_t bytes) {
	const char *from = at, *end = from + bytes;
	while (from < end) {
		const block *b = F.blocks;
		while (b != NULL && (from < (const char *)b->at || from >= (const char *)b->at + b->bytes)) b = b->next;
		if (b == NULL) return 0;
		from = (const char *)b->at + b->bytes;
	}
	return 1;
}

static void add(void *at, size_t bytes, int kind) {
	block *b = calloc(1, sizeof *b);
	b->at = at, b->bytes = bytes, b->kind = kind, b->device = current ? here() : 0, b->next = F.blocks;
	F.blocks = b;
}

static void drop(block *b) {
	for (block **p = &F.blocks; *p != NULL; p = &(*p)->next)
		if (*p == b) {
			*p = b->next;
			free(b);
			return;
		}
}

enum { DEVICE_BLOCK, HOST_BLOCK, RESERVED_BLOCK };

static int fake_cuInit(unsigned flags) { BEGIN(cuInit, 0) code = flags != 0; if (code == 0 && F.devices == 0) code = 100; END }
static int fake_cuDriverGetVersion(int *v) { BEGIN(cuDriverGetVersion, 0) *v = F.version; END }

static int fake_cuGetErrorName(int c, const char **name) {
	switch (c) {
	case 1: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
	case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
	case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
	case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return 0;
	}
	*name = NULL;
	return INVALID_VALUE;
}

static int fake_cuGetErrorString(int c, const char **text) { *text = c == 2 ? "out of memory" : NULL; return c == 2 ? 0 : INVALID_VALUE; }
static int fake_cuDeviceGetCount(int *n) { BEGIN(cuDeviceGetCount, 0) *n = F.devices; END }
static int fake_cuDeviceGet(int *d, int i) { BEGIN(cuDeviceGet, 0) if (i < 0 || i >= F.devices) code = INVALID_DEVICE; else *d = i; END }
static int fake_cuDeviceGetName(char *name, int n, int d) { BEGIN(cuDeviceGetName, 0) snprintf(name, n, "Fake GPU %d", d); END }
static int fake_cuDeviceGetUuid_v2(void *u, int d) { BEGIN(cuDeviceGetUuid_v2, 0) memset(u, 0xa0 + d, 16); END }
static int fake_cuDeviceGetPCIBusId(char *id, int n, int d) { BEGIN(cuDeviceGetPCIBusId, 0) snprintf(id, n, "0000:%02x:00.0", d + 1); END }
static int fake_cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; BEGIN(cuDeviceTotalMem_v2, 0) *n = F.memory; END }
static int fake_cuDeviceCanAccessPeer(int *can, int d, int p) { BEGIN(cuDeviceCanAccessPeer, 0) *can = d != p; END }

static int fake_cuDeviceGetAttribute(int *v, int a, int d) {
	(void)d;
	BEGIN(cuDeviceGetAttribute, 0)
	switch (a) {
	case 1: *v = 1024; break;
	case 8: *v = 49152; break;
	case 16: *v = 132; break;
	case 36: *v = 3201000; break;
	case 37: *v = 6144; break;
	case 38: *v = 50 << 20; break;
	case 39: *v = 2048; break;
	case 75: *v = 9; break;
	case 76: *v = 0; break;
	case 81: *v = 233472; break;
	case 82: *v = 65536; break;
	case 97: *v = 232448; break;
	default: *v = 1;
	}
	END
}

static int fake_cuDevicePrimaryCtxRetain(void **c, int d) { BEGIN(cuDevicePrimaryCtxRetain, 0) *c = &contexts[d]; F.open[d].contexts++; END }
static int fake_cuDevicePrimaryCtxRelease_v2(int d) { BEGIN(cuDevicePrimaryCtxRelease_v2, 0) if (F.open[d].contexts == 0) code = INVALID_CONTEXT; else F.open[d].contexts--; END }

// Destroys what is left in the context, and with it a fault. Its streams, events, modules and graphs are only forgotten.
static int fake_cuDevicePrimaryCtxReset_v2(int d) {
	BEGIN(cuDevicePrimaryCtxReset_v2, 0)
	for (block **p = &F.blocks; *p != NULL;) {
		block *b = *p;
		if (b->device != d) {
			p = &b->next;
			continue;
		}
		if (b->kind != RESERVED_BLOCK) free(b->at);
		*p = b->next;
		free(b);
	}
	long retained = F.open[d].contexts;
	memset(&F.open[d], 0, sizeof F.open[d]);
	F.open[d].contexts = retained; // a reset releases no reference
	F.used[d] = 0;
	F.faults[d] = 0;
	END
}

// Not recorded: it precedes every call. It refuses what is no context, as the driver does.
static int fake_cuCtxSetCurrent(void *c) {
	if ((char *)c < contexts || (char *)c >= contexts + FAKE_MAX_DEVICES) return INVALID_CONTEXT;
	current = c;
	return 0;
}

static int fake_cuCtxSynchronize(void) { BEGIN(cuCtxSynchronize, 1) END }

static int fake_cuCtxEnablePeerAccess(void *peer, unsigned flags) {
	(void)flags;
	BEGIN(cuCtxEnablePeerAccess, 1)
	int p = (int)((char *)peer - contexts);
	if (p == here()) code = INVALID_CONTEXT;
	else if (F.peers[here()][p]) code = PEER_ENABLED;
	else F.peers[here()][p] = 1;
	END
}

static int fake_cuCtxGetStreamPriorityRange(int *l, int *g) { BEGIN(cuCtxGetStreamPriorityRange, 1) *l = 0; *g = -5; END }
static int fake_cuMemGetInfo_v2(size_t *f, size_t *t) { BEGIN(cuMemGetInfo_v2, 1) *f = F.memory - F.used[here()]; *t = F.memory; END }

static int fake_cuMemAlloc_v2(tr_ptr *p, size_t n) {
	BEGIN(cuMemAlloc_v2, 1)
	void *at = NULL;
	if (n == 0) code = INVALID_VALUE;
	else if (n > F.memory - F.used[here()] || posix_memalign(&at, 256, n) != 0) code = OUT_OF_MEMORY;
	else {
		memset(at, 0xff, n); // NaN, so that reading before writing shows
		add(at, n, DEVICE_BLOCK);
		F.used[here()] += n;
		F.open[here()].device_allocs++;
		*p = (tr_ptr)(uintptr_t)at;
	}
	END
}

static int fake_cuMemFree_v2(tr_ptr p) {
	BEGIN(cuMemFree_v2, 1)
	block *b = find((void *)(uintptr_t)p, DEVICE_BLOCK);
	if (b == NULL) code = INVALID_VALUE;
	else {
		F.used[b->device] -= b->bytes;
		free(b->at);
		drop(b);
		F.open[here()].device_allocs--;
	}
	END
}

static int fake_cuMemHostAlloc(void **p, size_t n, unsigned flags) {
	(void)flags;
	BEGIN(cuMemHostAlloc, 1)
	void *at = NULL;
	if (posix_memalign(&at, 4096, n) != 0) code = OUT_OF_MEMORY;
	else {
		add(at, n, HOST_BLOCK);
		F.open[here()].host_allocs++;
		*p = at;
	}
	END
}

static int fake_cuMemFreeHost(void *p) {
	BEGIN(cuMemFreeHost, 1)
	block *b = find(p, HOST_BLOCK);
	if (b == NULL) code = INVALID_VALUE;
	else {
		free(p);
		drop(b);
		F.open[here()].host_allocs--;
	}
	END
}

static int fake_cuMemHostGetDevicePointer_v2(tr_ptr *d, void *h, unsigned flags) {
	(void)flags;
	BEGIN(cuMemHostGetDevicePointer_v2, 1) if (find(h, HOST_BLOCK) == NULL) code = INVALID_VALUE; else *d = (tr_ptr)(uintptr_t)h; END
}

// A capturing stream swallows the work as one node. Returns 1 when it did.
static int swallowed(void *s, int launch) {
	stream *st = s;
	if (st == NULL || st->capture == NULL) return 0;
	graph *g = st->capture;
	g->nodes++;
	if (launch >= 0 && g->count < MAX_NODES) g->launches[g->count++] = launch;
	return 1;
}

static int move(void *dst, const void *src, size_t n, int dst_device, int src_device, void *s) {
	if (dst_device && !covered(dst, n)) return INVALID_VALUE;
	if (src_device && !covered(src, n)) return INVALID_VALUE;
	if (!swallowed(s, -1)) memmove(dst, src, n);
	return 0;
}

#define AT(p) ((void *)(uintptr_t)(p))
static int fake_cuMemcpyHtoD_v2(tr_ptr d, const void *s, size_t n) { BEGIN(cuMemcpyHtoD_v2, 1) code = move(AT(d), s, n, 1, 0, NULL); END }
static int fake_cuMemcpyDtoH_v2(void *d, tr_ptr s, size_t n) { BEGIN(cuMemcpyDtoH_v2, 1) code = move(d, AT(s), n, 0, 1, NULL); END }
static int fake_cuMemcpyHtoDAsync_v2(tr_ptr d, const void *s, size_t n, void *st) { BEGIN(cuMemcpyHtoDAsync_v2, 1) code = move(AT(d), s, n, 1, 1, st); END }
static int fake_cuMemcpyDtoHAsync_v2(void *d, tr_ptr s, size_t n, void *st) { BEGIN(cuMemcpyDtoHAsync_v2, 1) code = move(d, AT(s), n, 1, 1, st); END }
static int fake_cuMemcpyDtoDAsync_v2(tr_ptr d, tr_ptr s, size_t n, void *st) { BEGIN(cuMemcpyDtoDAsync_v2, 1) code = move(AT(d), AT(s), n, 1, 1, st); END }

static int fake_cuMemcpyPeerAsync(tr_ptr d, void *dc, tr_ptr s, void *sc, size_t n, void *st) {
	(void)dc, (void)sc;
	BEGIN(cuMemcpyPeerAsync, 1) code = move(AT(d), AT(s), n, 1, 1, st); END
}

static int fake_cuMemsetD8Async(tr_ptr d, unsigned char v, size_t n, void *st) {
	BEGIN(cuMemsetD8Async, 1) if (!covered(AT(d), n)) code = INVALID_VALUE; else if (!swallowed(st, -1)) memset(AT(d), v, n); END
}

static int fake_cuMemsetD32Async(tr_ptr d, unsigned v, size_t n, void *st) {
	BEGIN(cuMemsetD32Async, 1)
	if (d % 4 != 0 || !covered(AT(d), 4 * n)) code = INVALID_VALUE;
	else if (!swallowed(st, -1)) for (size_t i = 0; i < n; i++) ((unsigned *)AT(d))[i] = v;
	END
}

static int fake_cuStreamCreateWithPriority(void **s, unsigned flags, int priority) {
	(void)flags, (void)priority;
	BEGIN(cuStreamCreateWithPriority, 1) *s = calloc(1, sizeof(stream)); F.open[here()].streams++; END
}

static int fake_cuStreamDestroy_v2(void *s) { BEGIN(cuStreamDestroy_v2, 1) free(s); F.open[here()].streams--; END }

// Waiting during a capture is an error and spoils the capture, as on the device. The default stream, null, captures nothing.
static int waiting(stream *s) {
	if (s == NULL || s->capture == NULL) return 0;
	s->invalid = 1;
	return CAPTURE_UNSUPPORTED;
}

static int fake_cuStreamSynchronize(void *s) { BEGIN(cuStreamSynchronize, 1) code = waiting(s); if (s != NULL) F.busy = 0; END }
static int fake_cuStreamQuery(void *s) { BEGIN(cuStreamQuery, 1) code = waiting(s); if (code == 0 && F.busy > 0) { F.busy--; code = NOT_READY; } END }
static int fake_cuStreamWaitEvent(void *s, void *e, unsigned flags) { (void)s, (void)flags; BEGIN(cuStreamWaitEvent, 1) if (e == NULL) code = INVALID_VALUE; END }

static int fake_cuStreamBeginCapture_v2(void *s, int mode) {
	(void)mode;
	BEGIN(cuStreamBeginCapture_v2, 1)
	stream *st = s;
	if (st->capture != NULL) code = CAPTURE_UNSUPPORTED;
	else {
		st->capture = calloc(1, sizeof(graph));
		st->invalid = 0;
	}
	END
}

static int fake_cuStreamEndCapture(void *s, void **g) {
	BEGIN(cuStreamEndCapture, 1)
	stream *st = s;
	if (st->capture == NULL) code = CAPTURE_UNSUPPORTED;
	else if (st->invalid) {
		free(st->capture);
		code = CAPTURE_INVALIDATED;
	} else {
		*g = st->capture;
		F.open[here()].graphs++;
	}
	st->capture = NULL;
	END
}

static int fake_cuEventCreate(void **e, unsigned flags) { BEGIN(cuEventCreate, 1) event *v = calloc(1, sizeof *v); v->timing = (flags & 2) == 0; *e = v; F.open[here()].events++; END }
static int fake_cuEventDestroy_v2(void *e) { BEGIN(cuEventDestroy_v2, 1) free(e); F.open[here()].events--; END }
static int fake_cuEventRecord(void *e, void *s) { (void)s; BEGIN(cuEventRecord, 1) event *v = e; v->recorded = 1; F.clock_ms += 1; v->at = F.clock_ms; END }
static int fake_cuEventSynchronize(void *e) { (void)e; BEGIN(cuEventSynchronize, 1) F.busy = 0; END }
static int fake_cuEventQuery(void *e) { (void)e; BEGIN(cuEventQuery, 1) if (F.busy > 0) { F.busy--; code = NOT_READY; } END }

static int fake_cuEventElapsedTime(float *ms, void *a, void *b) {
	BEGIN(cuEventElapsedTime, 1)
	event *s = a, *e = b;
	if (!s->timing || !e->timing || !s->recorded || !e->recorded) code = 400;
	else *ms = (float)(e->at - s->at);
	END
}

static int fake_cuModuleLoadData(void **m, const void *image) { (void)image; BEGIN(cuModuleLoadData, 1) *m = calloc(1, sizeof(module)); F.open[here()].modules++; END }

static int fake_cuModuleUnload(void *m) {
	BEGIN(cuModuleUnload, 1)
	module *mod = m;
	while (mod->functions != NULL) {
		function *f = mod->functions;
		mod->functions = f->next;
		free(f);
	}
	if (mod->global != 0) {
		block *b = find(AT(mod->global), RESERVED_BLOCK);
		free(AT(mod->global));
		drop(b);
	}
	free(mod);
	F.open[here()].modules--;
	END
}

static int fake_cuModuleGetFunction(void **f, void *m, const char *name) {
	BEGIN(cuModuleGetFunction, 1)
	module *mod = m;
	if (strcmp(name, F.missing_kernel) == 0) code = NOT_FOUND;
	else {
		function *fn = calloc(1, sizeof *fn);
		copy_name(fn->name, name);
		fn->next = mod->functions, mod->functions = fn;
		*f = fn;
	}
	END
}

static int fake_cuModuleGetGlobal_v2(tr_ptr *p, size_t *n, void *m, const char *name) {
	(void)name;
	BEGIN(cuModuleGetGlobal_v2, 1)
	module *mod = m;
	if (mod->global == 0) {
		void *at = calloc(1, 256);
		add(at, 256, RESERVED_BLOCK);
		mod->global = (tr_ptr)(uintptr_t)at;
	}
	*p = mod->global;
	*n = 256;
	END
}

static int fake_cuFuncGetAttribute(int *v, int a, void *f) { (void)f; BEGIN(cuFuncGetAttribute, 1) *v = a == 0 ? 1024 : a == 4 ? 32 : a == 6 ? 90 : 0; END }

static int fake_cuFuncSetAttribute(void *f, int a, int v) {
	BEGIN(cuFuncSetAttribute, 1) if (a == 8 && v > 232448) code = INVALID_VALUE; else if (a == 8) ((function *)f)->max_shared = v; END
}

static int fake_cuFuncGetParamInfo(void *f, size_t i, size_t *offset, size_t *n) {
	(void)f;
	BEGIN(cuFuncGetParamInfo, 1)
	*offset = 0;
	*n = (size_t)F.param_bytes;
	if (i > 0 || F.param_bytes <= 0) code = INVALID_VALUE;
	END
}

static int fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, size_t shared) {
	(void)f, (void)shared;
	BEGIN(cuOccupancyMaxActiveBlocksPerMultiprocessor, 1) if (threads <= 0) code = INVALID_VALUE; else *n = 2048 / threads; END
}

static int fake_cuLaunchKernelEx(const tr_launch_config *c, void *f, void **params, void **extra) {
	(void)extra;
	BEGIN(cuLaunchKernelEx, 1)
	function *fn = f;
	if (c->shared_bytes > 49152 && (int)c->shared_bytes > fn->max_shared) code = INVALID_VALUE;
	else if (F.launch_count < FAKE_MAX_LAUNCHES) {
		fake_launch *l = &F.launches[F.launch_count];
		memset(l, 0, sizeof *l);
		copy_name(l->kernel, fn->name);
		memcpy(l->grid, c->grid, sizeof l->grid);
		memcpy(l->block, c->block, sizeof l->block);
		l->shared_bytes = c->shared_bytes;
		l->stream = c->stream;
		for (unsigned i = 0; i < c->attribute_count; i++) {
			const tr_launch_attribute *a = &c->attributes[i];
			if (a->id == 2) l->cooperative = (unsigned)a->value.flag;
			if (a->id == 6) l->pdl = (unsigned)a->value.flag;
			if (a->id == 4) l->cluster[0] = a->value.dim.x, l->cluster[1] = a->value.dim.y, l->cluster[2] = a->value.dim.z;
		}
		// Without a declared size the shim passes a full block, padded with zeros.
		l->param_bytes = params == NULL ? 0 : F.has_param_sizes ? (unsigned)F.param_bytes : FAKE_MAX_PARAMS;
		if (params != NULL) memcpy(l->params, params[0], l->param_bytes);
		l->captured = swallowed(c->stream, (int)F.launch_count);
		F.launch_count++;
	}
	END
}

static int fake_cuGraphInstantiateWithFlags(void **x, void *g, unsigned long long flags) {
	(void)flags;
	BEGIN(cuGraphInstantiateWithFlags, 1)
	if (F.graph_bytes > F.memory - F.used[here()]) code = OUT_OF_MEMORY;
	else {
		graph *copy = malloc(sizeof *copy);
		memcpy(copy, g, sizeof *copy);
		copy->bytes = F.graph_bytes;
		F.used[here()] += copy->bytes;
		*x = copy;
		F.open[here()].execs++;
	}
	END
}

static int fake_cuGraphGetNodes(void *g, void **nodes, size_t *n) { (void)nodes; BEGIN(cuGraphGetNodes, 1) *n = (size_t)((graph *)g)->nodes; END }
static int fake_cuGraphDestroy(void *g) { BEGIN(cuGraphDestroy, 1) free(g); F.open[here()].graphs--; END }
static int fake_cuGraphUpload(void *x, void *s) { (void)x, (void)s; BEGIN(cuGraphUpload, 1) END }

static int fake_cuGraphLaunch(void *x, void *s) {
	BEGIN(cuGraphLaunch, 1)
	graph *g = x;
	for (int i = 0; i < g->count && F.launch_count < FAKE_MAX_LAUNCHES; i++) {
		fake_launch *l = &F.launches[F.launch_count++];
		*l = F.launches[g->launches[i]];
		l->captured = 0, l->replay = 1, l->stream = s;
	}
	END
}

static int fake_cuGraphExecDestroy(void *x) {
	BEGIN(cuGraphExecDestroy, 1)
	F.used[here()] -= ((graph *)x)->bytes;
	free(x);
	F.open[here()].execs--;
	END
}
static int fake_cuMemGetAllocationGranularity(size_t *n, const tr_alloc_prop *p, int o) { (void)p, (void)o; BEGIN(cuMemGetAllocationGranularity, 0) *n = GRANULE; END }

static int fake_cuMemAddressReserve(tr_ptr *p, size_t n, size_t align, tr_ptr want, unsigned long long flags) {
	(void)align, (void)want, (void)flags;
	BEGIN(cuMemAddressReserve, 1)
	void *at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) code = OUT_OF_MEMORY;
	else {
		*p = (tr_ptr)(uintptr_t)at;
		F.open[here()].reservations++;
	}
	END
}

static int fake_cuMemAddressFree(tr_ptr p, size_t n) { BEGIN(cuMemAddressFree, 1) munmap(AT(p), n); F.open[here()].reservations--; END }

static int fake_cuMemCreate(unsigned long long *h, size_t n, const tr_alloc_prop *p, unsigned long long flags) {
	(void)flags;
	BEGIN(cuMemCreate, 1)
	if (n > F.memory - F.used[p->location.id]) code = OUT_OF_MEMORY;
	else {
		F.used[p->location.id] += n;
		*h = n | (unsigned long long)p->location.id; // sizes are multiples of the granule, so the low bits are free
		F.open[here()].mappings++;
	}
	END
}

static int fake_cuMemRelease(unsigned long long h) {
	BEGIN(cuMemRelease, 1) F.used[h & 0xff] -= h & ~0xffull; F.open[here()].mappings--; END
}

static int fake_cuMemMap(tr_ptr p, size_t n, size_t offset, unsigned long long h, unsigned long long flags) {
	(void)offset, (void)h, (void)flags;
	BEGIN(cuMemMap, 1)
	if (find(AT(p), RESERVED_BLOCK) != NULL) code = INVALID_VALUE;
	else add(AT(p), n, RESERVED_BLOCK);
	END
}

static int fake_cuMemUnmap(tr_ptr p, size_t n) {
	BEGIN(cuMemUnmap, 1)
	block *b = find(AT(p), RESERVED_BLOCK);
	if (b == NULL || b->bytes != n) code = INVALID_VALUE;
	else {
		drop(b);
		mprotect(AT(p), n, PROT_NONE);
	}
	END
}

static int fake_cuMemSetAccess(tr_ptr p, size_t n, const tr_access *a, size_t count) {
	BEGIN(cuMemSetAccess, 1)
	for (size_t i = 0; i < count; i++) if (a[i].location.type != 1 || a[i].location.id >= F.devices) code = INVALID_DEVICE;
	if (code == 0) mprotect(AT(p), n, PROT_READ | PROT_WRITE);
	END
}

void fake_reset(int version, int devices, size_t memory, size_t graph_bytes, int param_bytes, int has_param_sizes) {
	pthread_mutex_lock(&F.mu);
	while (F.blocks != NULL) drop(F.blocks);
	memset(F.used, 0, sizeof F.used);
	memset(F.peers, 0, sizeof F.peers);
	memset(F.open, 0, sizeof F.open);
	memset(F.faults, 0, sizeof F.faults);
	F.version = version, F.devices = devices, F.memory = memory, F.graph_bytes = graph_bytes;
	F.param_bytes = param_bytes, F.has_param_sizes = has_param_sizes;
	F.poison = F.busy = F.fail_count = 0;
	F.call_count = F.launch_count = 0;
	F.clock_ms = 0;
	F.missing_kernel[0] = 0;
#define SET(name, parameters) F.table.name = fake_##name;
	TRCTL_REQUIRED(SET)
	TRCTL_OPTIONAL(SET)
	if (!has_param_sizes) F.table.cuFuncGetParamInfo = NULL;
	pthread_mutex_unlock(&F.mu);
}

trctl_driver *fake_table(void) { return &F.table; }

void fake_without(const char *symbol) {
#define CLEAR(name, parameters) if (strcmp(symbol, #name) == 0) F.table.name = NULL;
	TRCTL_REQUIRED(CLEAR)
	TRCTL_OPTIONAL(CLEAR)
}

void fake_fail(const char *op, int nth, int code) {
	pthread_mutex_lock(&F.mu);
	if (F.fail_count < MAX_FAILS) {
		fail *f = &F.fails[F.fail_count++];
		copy_name(f->op, op);
		f->nth = nth, f->code = code;
	}
	pthread_mutex_unlock(&F.mu);
}

void fake_poison(int code) { pthread_mutex_lock(&F.mu); F.poison = code; pthread_mutex_unlock(&F.mu); }
void fake_fault(int device, int code) { pthread_mutex_lock(&F.mu); F.faults[device] = code; pthread_mutex_unlock(&F.mu); }
void fake_missing_kernel(const char *name) { pthread_mutex_lock(&F.mu); copy_name(F.missing_kernel, name); pthread_mutex_unlock(&F.mu); }
void fake_busy(int polls) { pthread_mutex_lock(&F.mu); F.busy = polls; pthread_mutex_unlock(&F.mu); }
long fake_call_count(void) { return F.call_count < FAKE_MAX_CALLS ? F.call_count : FAKE_MAX_CALLS; }
const char *fake_call(long i) { return F.calls[i]; }
long fake_launch_count(void) { return F.launch_count; }
const fake_launch *fake_launch_at(long i) { return &F.launches[i]; }

fake_open fake_counts(void) {
	fake_open sum = {0};
	pthread_mutex_lock(&F.mu);
	for (int d = 0; d < FAKE_MAX_DEVICES; d++) {
		const fake_open *o = &F.open[d];
		sum.contexts += o->contexts, sum.device_allocs += o->device_allocs, sum.host_allocs += o->host_allocs;
		sum.reservations += o->reservations, sum.mappings += o->mappings, sum.streams += o->streams, sum.events += o->events;
		sum.modules += o->modules, sum.graphs += o->graphs, sum.execs += o->execs;
	}
	pthread_mutex_unlock(&F.mu);
	return sum;
}
