//go:build linux && cgo

#include "table.h"

#include <dlfcn.h>
#include <string.h>

enum {
	CUBLAS_STATUS_NOT_SUPPORTED = 15,
	CUBLAS_COMPUTE_32F = 68,
	CUBLAS_OP_T = 1,
	CUDA_R_32F = 0,
	CUDA_R_16BF = 14,
	MATMUL_DESC_TRANSA = 3,
	PREF_MAX_WORKSPACE_BYTES = 1,
	PREF_MIN_ALIGNMENT_A_BYTES = 5, // B, C and D follow
	ALIGNMENT_BYTES = 16,
};

#define ENTER \
	do { \
		int entered = ((int (*)(void *))c->set_current)((void *)c->handle); \
		if (entered != 0) return TR_LT_DRIVER + entered; \
	} while (0)

const char *tr_lt_resolve(trctl_cublaslt *t, uintptr_t library) {
#define RESOLVE(result, name, parameters) *(void **)&t->name = dlsym((void *)library, #name);
	TRCTL_CUBLASLT(RESOLVE)
#undef RESOLVE
	return tr_lt_missing(t);
}

const char *tr_lt_missing(const trctl_cublaslt *t) {
#define CHECK(result, name, parameters) if (t->name == NULL) return #name;
	TRCTL_CUBLASLT(CHECK)
#undef CHECK
	return NULL;
}

size_t tr_lt_version(const trctl_cublaslt *t) { return t->cublasLtGetVersion(); }
const char *tr_lt_status(const trctl_cublaslt *t, int status) { return t->cublasLtGetStatusName(status); }
int tr_lt_create(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t *handle) { ENTER; return t->cublasLtCreate((void **)handle); }
int tr_lt_destroy(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t handle) { ENTER; return t->cublasLtDestroy((void *)handle); }

// Row-major w[n, k] is column-major k×n, so it enters transposed as A; row-major x[t, k] is column-major k×t, B; and
// row-major out[t, n] is column-major n×t, C and D.
static int layouts(const trctl_cublaslt *t, int64_t tokens, int64_t n, int64_t k, int out_f32, tr_lt_plan *plan) {
	const int op = CUBLAS_OP_T;
	int status = t->cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	if (status == 0) status = t->cublasLtMatmulDescSetAttribute(plan->desc, MATMUL_DESC_TRANSA, &op, sizeof op);
	if (status == 0) status = t->cublasLtMatrixLayoutCreate(&plan->w, CUDA_R_16BF, (uint64_t)k, (uint64_t)n, k);
	if (status == 0) status = t->cublasLtMatrixLayoutCreate(&plan->x, CUDA_R_16BF, (uint64_t)k, (uint64_t)tokens, k);
	if (status == 0) status = t->cublasLtMatrixLayoutCreate(&plan->out, out_f32 ? CUDA_R_32F : CUDA_R_16BF, (uint64_t)n, (uint64_t)tokens, n);
	return status;
}

static int choose(const trctl_cublaslt *t, uintptr_t handle, uint64_t workspace, tr_lt_plan *plan, int *found) {
	void *preference = NULL;
	const uint32_t alignment = ALIGNMENT_BYTES;
	int status = t->cublasLtMatmulPreferenceCreate(&preference);
	if (status != 0) return status;
	status = t->cublasLtMatmulPreferenceSetAttribute(preference, PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
	for (int i = 0; i < 4 && status == 0; i++)
		status = t->cublasLtMatmulPreferenceSetAttribute(preference, PREF_MIN_ALIGNMENT_A_BYTES + i, &alignment, sizeof alignment);
	if (status == 0)
		status = t->cublasLtMatmulAlgoGetHeuristic((void *)handle, plan->desc, plan->w, plan->x, plan->out, plan->out, preference, 1, &plan->chosen, found);
	if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
		*found = 0;
		status = 0;
	}
	if (status == 0 && *found > 0) status = plan->chosen.state;
	int destroyed = t->cublasLtMatmulPreferenceDestroy(preference);
	return status != 0 ? status : destroyed;
}

int tr_lt_plan_make(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t handle, int64_t tokens, int64_t n, int64_t k,
	int out_f32, uint64_t workspace, tr_lt_plan *plan, int *found) {
	memset(plan, 0, sizeof *plan);
	*found = 0;
	ENTER;
	int status = layouts(t, tokens, n, k, out_f32, plan);
	if (status == 0) status = choose(t, handle, workspace, plan, found);
	if (status != 0 || *found == 0) tr_lt_plan_free(t, plan);
	return status;
}

int tr_lt_plan_free(const trctl_cublaslt *t, tr_lt_plan *plan) {
	int first = 0, status;
	void *parts[] = {plan->w, plan->x, plan->out};
	for (int i = 0; i < 3; i++)
		if (parts[i] != NULL && (status = t->cublasLtMatrixLayoutDestroy(parts[i])) != 0 && first == 0) first = status;
	if (plan->desc != NULL && (status = t->cublasLtMatmulDescDestroy(plan->desc)) != 0 && first == 0) first = status;
	memset(plan, 0, sizeof *plan);
	return first;
}

int tr_lt_matmul(const trctl_cublaslt *t, const tr_lt_context *c, uintptr_t handle, const tr_lt_plan *plan, uint64_t out,
	uint64_t x, uint64_t w, float beta, uint64_t workspace, uint64_t workspace_bytes, uintptr_t stream) {
	const float alpha = 1;
	void *d = (void *)(uintptr_t)out;
	ENTER;
	return t->cublasLtMatmul((void *)handle, plan->desc, &alpha, (const void *)(uintptr_t)w, plan->w, (const void *)(uintptr_t)x, plan->x,
		&beta, d, plan->out, d, plan->out, plan->chosen.algo, (void *)(uintptr_t)workspace, workspace_bytes, (void *)stream);
}
