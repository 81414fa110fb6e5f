// The part of cuBLASLt that TokenRouter uses, declared here so that no CUDA header is needed to build. Column-major, as
// the library thinks.
#ifndef TRCTL_CUBLASLT_TABLE_H
#define TRCTL_CUBLASLT_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct tr_lt_heuristic { // cublasLtMatmulHeuristicResult_t
	uint64_t algo[8];
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} tr_lt_heuristic;

_Static_assert(sizeof(tr_lt_heuristic) == 96, "cublasLtMatmulHeuristicResult_t");

#define TRCTL_CUBLASLT(X) \
	X(size_t, cublasLtGetVersion, (void)) \
	X(const char *, cublasLtGetStatusName, (int status)) \
	X(int, cublasLtCreate, (void **handle)) \
	X(int, cublasLtDestroy, (void *handle)) \
	X(int, cublasLtMatmulDescCreate, (void **desc, int compute, int scale)) \
	X(int, cublasLtMatmulDescDestroy, (void *desc)) \
	X(int, cublasLtMatmulDescSetAttribute, (void *desc, int attribute, const void *value, size_t bytes)) \
	X(int, cublasLtMatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld)) \
	X(int, cublasLtMatrixLayoutDestroy, (void *layout)) \
	X(int, cublasLtMatmulPreferenceCreate, (void **preference)) \
	X(int, cublasLtMatmulPreferenceDestroy, (void *preference)) \
	X(int, cublasLtMatmulPreferenceSetAttribute, (void *preference, int attribute, const void *value, size_t bytes)) \
	X(int, cublasLtMatmulAlgoGetHeuristic, (void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int want, tr_lt_heuristic *results, int *count)) \
	X(int, cublasLtMatmul, (void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout, const uint64_t *algo, void *workspace, size_t workspace_bytes, void *stream))

typedef struct trctl_cublaslt {
#define FIELD(result, name, parameters) result (*name) parameters;
	TRCTL_CUBLASLT(FIELD)
#undef FIELD
} trctl_cublaslt;

// What the shims need to make the driver's context current.
typedef struct tr_lt_context {
	uintptr_t set_current;
	uintptr_t handle;
} tr_lt_context;

// One shape with its chosen algorithm.
typedef struct tr_lt_plan {
	void *desc, *w, *x, *out;
	tr_lt_heuristic chosen;
} tr_lt_plan;

// Codes of the shims beside cuBLAS's own, which are positive and small: a failed cuCtxSetCurrent is its code plus
// TR_LT_DRIVER.
enum { TR_LT_DRIVER = 100000 };

const char *tr_lt_resolve(trctl_cublaslt *t, uintptr_t library);
const char *tr_lt_missing(const trctl_cublaslt *t);
size_t tr_lt_version(const trctl_cublaslt *t);
const char *tr_lt_status(const trctl_cublaslt *t, int status);
int tr_lt_create(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t *handle);
int tr_lt_destroy(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t handle);
// tr_lt_plan_make fills the plan; on an error nothing stays behind. found is 0 when the library knows no algorithm.
int tr_lt_plan_make(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t handle, int64_t tokens, int64_t n, int64_t k,
	int out_f32, uint64_t workspace, tr_lt_plan *plan, int *found);
int tr_lt_plan_free(const trctl_cublaslt *t, tr_lt_plan *plan);
int tr_lt_matmul(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t handle, const tr_lt_plan *plan, uint64_t out,
	uint64_t x, uint64_t w, float beta, uint64_t workspace, uint64_t workspace_bytes, uintptr_t stream);

#endif
