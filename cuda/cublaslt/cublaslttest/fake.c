//go:build linux && cgo

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_VALUE = 7, NOT_SUPPORTED = 15, R_32F = 0, R_16BF = 14 };

typedef struct layout { int type; uint64_t rows, cols; int64_t ld; } layout;
typedef struct desc { int transposed[2]; } desc;

// The one simulated library. Tests use it one after another.
static struct {
	trctl_cublaslt table;
	size_t version, workspace;
	long open;
	char failing[64];
	int status;
} F;

static int failed(const char *function) { return strcmp(F.failing, function) == 0 ? F.status : 0; }
#define FAIL(function) do { int status_ = failed(#function); if (status_ != 0) return status_; } while (0)

static size_t fake_cublasLtGetVersion(void) { return F.version; }

static const char *fake_cublasLtGetStatusName(int status) {
	return status == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_UNKNOWN";
}

static int make(void **out, size_t bytes) {
	*out = calloc(1, bytes);
	F.open++;
	return 0;
}

static int drop(void *object) {
	free(object);
	F.open--;
	return 0;
}

static int fake_cublasLtCreate(void **h) { FAIL(cublasLtCreate); return make(h, 1); }
static int fake_cublasLtDestroy(void *h) { return drop(h); }

static int fake_cublasLtMatmulDescCreate(void **d, int compute, int scale) {
	FAIL(cublasLtMatmulDescCreate);
	return compute != 68 || scale != R_32F ? INVALID_VALUE : make(d, sizeof(desc));
}

static int fake_cublasLtMatmulDescDestroy(void *d) { return drop(d); }

static int fake_cublasLtMatmulDescSetAttribute(void *d, int attribute, const void *value, size_t bytes) {
	FAIL(cublasLtMatmulDescSetAttribute);
	if (bytes != 4 || (attribute != 3 && attribute != 4)) return INVALID_VALUE;
	((desc *)d)->transposed[attribute - 3] = *(const int *)value;
	return 0;
}

static int fake_cublasLtMatrixLayoutCreate(void **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
	FAIL(cublasLtMatrixLayoutCreate);
	if (ld < (int64_t)rows) return INVALID_VALUE;
	make(l, sizeof(layout));
	*(layout *)*l = (layout){type, rows, cols, ld};
	return 0;
}

static int fake_cublasLtMatrixLayoutDestroy(void *l) { return drop(l); }
static int fake_cublasLtMatmulPreferenceCreate(void **p) { FAIL(cublasLtMatmulPreferenceCreate); return make(p, 8); }
static int fake_cublasLtMatmulPreferenceDestroy(void *p) { return drop(p); }

static int fake_cublasLtMatmulPreferenceSetAttribute(void *p, int attribute, const void *value, size_t bytes) {
	if (attribute == 1 && bytes == 8) memcpy(p, value, 8);
	return attribute == 1 ? (bytes == 8 ? 0 : INVALID_VALUE) : (bytes == 4 ? 0 : INVALID_VALUE);
}

static int fake_cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *dl, void *p, int want, tr_lt_heuristic *r, int *n) {
	(void)h, (void)d, (void)a, (void)b, (void)c, (void)dl;
	FAIL(cublasLtMatmulAlgoGetHeuristic);
	uint64_t most;
	memcpy(&most, p, 8);
	*n = 0;
	if (want < 1) return INVALID_VALUE;
	if (most < F.workspace) return NOT_SUPPORTED;
	memset(r, 0, sizeof *r);
	r->algo[0] = 0x5eed;
	r->workspace = F.workspace;
	*n = 1;
	return 0;
}

static float element(const void *m, const layout *l, uint64_t row, uint64_t col) {
	uint64_t i = row + col * (uint64_t)l->ld;
	if (l->type == R_32F) return ((const float *)m)[i];
	union { uint32_t u; float f; } v = {.u = (uint32_t)((const uint16_t *)m)[i] << 16};
	return v.f;
}

static void store(void *m, const layout *l, uint64_t row, uint64_t col, float value) {
	uint64_t i = row + col * (uint64_t)l->ld;
	if (l->type == R_32F) {
		((float *)m)[i] = value;
		return;
	}
	union { uint32_t u; float f; } v = {.f = value};
	((uint16_t *)m)[i] = (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

static int fake_cublasLtMatmul(void *h, void *dv, const void *alpha, const void *a, void *av, const void *b, void *bv, const void *beta,
	const void *c, void *cv, void *d, void *outv, const uint64_t *algo, void *workspace, size_t workspace_bytes, void *stream) {
	FAIL(cublasLtMatmul);
	const desc *op = dv;
	const layout *al = av, *bl = bv, *cl = cv, *out = outv;
	if (h == NULL || stream == NULL || algo[0] != 0x5eed || workspace_bytes < F.workspace) return INVALID_VALUE;
	uint64_t m = op->transposed[0] ? al->cols : al->rows, k = op->transposed[0] ? al->rows : al->cols;
	uint64_t n = op->transposed[1] ? bl->rows : bl->cols;
	if (out->rows != m || out->cols != n || k != (op->transposed[1] ? bl->cols : bl->rows)) return INVALID_VALUE;
	for (uint64_t i = 0; i < m; i++)
		for (uint64_t j = 0; j < n; j++) {
			float sum = 0;
			for (uint64_t l = 0; l < k; l++)
				sum += (op->transposed[0] ? element(a, al, l, i) : element(a, al, i, l)) * (op->transposed[1] ? element(b, bl, j, l) : element(b, bl, l, j));
			sum *= *(const float *)alpha;
			if (*(const float *)beta != 0) sum += *(const float *)beta * element(c, cl, i, j);
			store(d, out, i, j, sum);
		}
	if (F.workspace > 0) memset(workspace, 0xee, F.workspace);
	return 0;
}

trctl_cublaslt *fake_lt_table(void) { return &F.table; }

void fake_lt_reset(size_t version, size_t workspace) {
	memset(&F, 0, sizeof F);
	F.version = version;
	F.workspace = workspace;
#define SET(result, name, parameters) F.table.name = fake_##name;
	TRCTL_CUBLASLT(SET)
#undef SET
}

void fake_lt_fail(const char *function, int status) {
	snprintf(F.failing, sizeof F.failing, "%s", function);
	F.status = status;
}

long fake_lt_open(void) { return F.open; }
