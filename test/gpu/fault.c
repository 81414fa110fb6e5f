/* Spoils the GPU of the process that preloads it, once, when the file that TRCTL_FAULT_FILE names appears: a kernel
 * writes where nothing is mapped, in the primary context that the process uses. The file is removed first, so that a
 * process put in this one's place runs undisturbed. For run.sh only:
 *
 *   cc -shared -fPIC -O1 -o fault.so fault.c -ldl -lpthread
 *   TRCTL_FAULT_FILE=/tmp/now LD_PRELOAD=$PWD/fault.so trctl serve --device cuda
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char wild[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry wild() { .reg .b64 %p; mov.u64 %p, 17592186044416; st.volatile.global.u32 [%p], 1; ret; }\n";

/* call stops the thread at the first driver call that fails; its name and code are printed. */
#define CALL(name, type, ...)                                                       \
  do {                                                                              \
    int(*f) type = (int(*) type)dlsym(cuda, name);                                  \
    int code = f ? f(__VA_ARGS__) : -1;                                             \
    if (code) { fprintf(stderr, "fault: %s gave %d\n", name, code); return NULL; } \
  } while (0)

static void *fault(void *path) {
  while (access(path, F_OK) != 0) usleep(20000);
  unlink(path);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!cuda) { fprintf(stderr, "fault: the process has no driver loaded\n"); return NULL; }
  int device;
  void *context, *module, *function;
  CALL("cuDeviceGet", (int *, int), &device, 0);
  CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
  CALL("cuCtxSetCurrent", (void *), context);
  CALL("cuModuleLoadData", (void **, const void *), &module, wild);
  CALL("cuModuleGetFunction", (void **, void *, const char *), &function, module, "wild");
  fprintf(stderr, "fault: a wild store is launched\n");
  CALL("cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
       function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  return NULL;
}

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("TRCTL_FAULT_FILE");
  pthread_t thread;
  if (path && pthread_create(&thread, NULL, fault, (void *)path) == 0) pthread_detach(thread);
}
