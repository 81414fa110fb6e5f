// The part of NVRTC that TokenRouter uses, declared here so that no CUDA header is needed to build.
#ifndef TRCTL_NVRTC_TABLE_H
#define TRCTL_NVRTC_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define TRCTL_NVRTC(X) \
	X(int, nvrtcVersion, (int *major, int *minor)) \
	X(const char *, nvrtcGetErrorString, (int code)) \
	X(int, nvrtcGetNumSupportedArchs, (int *count)) \
	X(int, nvrtcGetSupportedArchs, (int *archs)) \
	X(int, nvrtcCreateProgram, (void **program, const char *source, const char *name, int count, const char *const *headers, const char *const *names)) \
	X(int, nvrtcDestroyProgram, (void **program)) \
	X(int, nvrtcCompileProgram, (void *program, int count, const char *const *options)) \
	X(int, nvrtcGetCUBINSize, (void *program, size_t *bytes)) \
	X(int, nvrtcGetCUBIN, (void *program, char *cubin)) \
	X(int, nvrtcGetProgramLogSize, (void *program, size_t *bytes)) \
	X(int, nvrtcGetProgramLog, (void *program, char *log))

typedef struct trctl_nvrtc {
#define FIELD(result, name, parameters) result (*name) parameters;
	TRCTL_NVRTC(FIELD)
#undef FIELD
} trctl_nvrtc;

// Fills the table from a dlopen handle; returns NULL or the name of the first missing function.
const char *tr_nvrtc_resolve(trctl_nvrtc *t, uintptr_t library);

// The result of one compilation, allocated with malloc. The caller frees log and cubin.
typedef struct tr_compiled {
	int code;
	const char *stage; // the step that failed, or NULL
	char *log;
	size_t log_bytes;
	char *cubin;
	size_t cubin_bytes;
} tr_compiled;

void tr_nvrtc_compile(const trctl_nvrtc *t, const char *source, const char *name, int header_count, const char *const *headers,
	const char *const *names, int option_count, const char *const *options, tr_compiled *out);
int tr_nvrtc_version(const trctl_nvrtc *t, int *major, int *minor);
int tr_nvrtc_arch_count(const trctl_nvrtc *t, int *count);
int tr_nvrtc_archs(const trctl_nvrtc *t, int *archs);
const char *tr_nvrtc_error(const trctl_nvrtc *t, int code);

#endif
