//go:build linux && cgo

#include "table.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NVRTC_OUT_OF_MEMORY = 1 };

const char *tr_nvrtc_resolve(trctl_nvrtc *t, uintptr_t library) {
#define RESOLVE(result, name, parameters) \
	*(void **)&t->name = dlsym((void *)library, #name); \
	if (t->name == NULL) return #name;
	TRCTL_NVRTC(RESOLVE)
#undef RESOLVE
	return NULL;
}

int tr_nvrtc_version(const trctl_nvrtc *t, int *major, int *minor) { return t->nvrtcVersion(major, minor); }
int tr_nvrtc_arch_count(const trctl_nvrtc *t, int *count) { return t->nvrtcGetNumSupportedArchs(count); }
int tr_nvrtc_archs(const trctl_nvrtc *t, int *archs) { return t->nvrtcGetSupportedArchs(archs); }
const char *tr_nvrtc_error(const trctl_nvrtc *t, int code) { return t->nvrtcGetErrorString(code); }

// Copies the log, also after a failure: the log says why.
static void take_log(const trctl_nvrtc *t, void *program, tr_compiled *out) {
	size_t bytes = 0;
	if (t->nvrtcGetProgramLogSize(program, &bytes) != 0 || bytes <= 1) return;
	char *log = calloc(1, bytes + 1);
	if (log == NULL) return;
	if (t->nvrtcGetProgramLog(program, log) != 0) {
		free(log);
		return;
	}
	out->log = log;
	out->log_bytes = strnlen(log, bytes);
}

static void take_cubin(const trctl_nvrtc *t, void *program, tr_compiled *out) {
	size_t bytes = 0;
	out->stage = "read cubin";
	out->code = t->nvrtcGetCUBINSize(program, &bytes);
	if (out->code != 0) return;
	char *cubin = malloc(bytes > 0 ? bytes : 1);
	if (cubin == NULL) {
		out->code = NVRTC_OUT_OF_MEMORY;
		return;
	}
	out->code = t->nvrtcGetCUBIN(program, cubin);
	if (out->code != 0) {
		free(cubin);
		return;
	}
	out->cubin = cubin;
	out->cubin_bytes = bytes;
	out->stage = NULL;
}

void tr_nvrtc_compile(const trctl_nvrtc *t, const char *source, const char *name, int header_count, const char *const *headers,
	const char *const *names, int option_count, const char *const *options, tr_compiled *out) {
	void *program = NULL;
	memset(out, 0, sizeof *out);
	out->stage = "create program";
	out->code = t->nvrtcCreateProgram(&program, source, name, header_count, headers, names);
	if (out->code != 0) return;
	out->stage = "compile";
	out->code = t->nvrtcCompileProgram(program, option_count, options);
	take_log(t, program, out);
	if (out->code == 0) take_cubin(t, program, out);
	t->nvrtcDestroyProgram(&program);
}
